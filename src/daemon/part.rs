//! The answer of one shard to a command of the admin port, in a form that another node can be sent: complete,
//! or as a part of the answer of all shards.

use super::answers::{self, ShardAnswer};
use crate::admin::{CommandResponse, Status};
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use tidegate_types::{Answer, Key, ListPlace, Listed, Reply, Timeline};

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum ShardPart {
    /// The complete answer.
    Whole { status: Status, document: Value },
    /// A page of the shard's list, and where the next one begins.
    Page { rows: Vec<PageRow>, next: Option<Key> },
    /// The timeline of the shard.
    Timeline(Box<Timeline>),
    /// No node has the shard at present, or `owner` has it and cannot be asked: nothing was done.
    Missing { shard: u16, owner: Option<String> },
}

/// One row of a page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PageRow {
    pub(super) key: Key,
    /// Bytes of its item, about; see [`tidegate_types::Listed::size`].
    pub(super) size: u64,
    /// The JSON of the item.
    pub(super) row: Value,
}

impl ShardPart {
    /// The shard cannot answer, for this reason.
    pub(super) fn unavailable(reason: &str) -> Self {
        ShardPart::Whole { status: Status::Unavailable, document: json!({ "error": reason }) }
    }

    /// The response to a command that one shard has answered.
    pub(super) fn response(self) -> CommandResponse {
        match self {
            ShardPart::Whole { status, document } => CommandResponse { status, document },
            ShardPart::Page { rows, next } => {
                let next = next.map(|key| ListPlace { key, shard: 0 });
                let document = answers::page(rows.into_iter().map(|row| row.row), next);
                CommandResponse { status: Status::Known, document }
            }
            ShardPart::Timeline(told) => {
                CommandResponse { status: Status::Known, document: answers::timeline(&told) }
            }
            ShardPart::Missing { shard, owner } => {
                let home = format!("shard {shard}, the home of this application, belongs to");
                let reason = match owner {
                    None => format!("{home} no node at present"),
                    Some(owner) => format!(
                        "{home} node {owner}, which has no queue at the control exchange: nothing was done"
                    ),
                };
                ShardPart::unavailable(&reason).response()
            }
        }
    }
}

impl From<ShardAnswer> for ShardPart {
    fn from(answer: ShardAnswer) -> Self {
        let (Reply { asker, command, answer }, store_identity) = match answer {
            ShardAnswer::Carried { reply, store_identity } => (*reply, store_identity),
            ShardAnswer::Refused(reason) => return ShardPart::unavailable(&reason),
        };
        if let Answer::Listed { items, next } = answer {
            let row = |item: &Listed| PageRow {
                key: item.key,
                size: item.size(),
                row: answers::row(item, store_identity),
            };
            return ShardPart::Page { rows: items.iter().map(row).collect(), next };
        }
        if let Answer::Timeline(told) = answer {
            return ShardPart::Timeline(told);
        }
        let reply = Reply { asker, command, answer };
        let CommandResponse { status, document } = answers::answered(&reply, store_identity);
        ShardPart::Whole { status, document }
    }
}
