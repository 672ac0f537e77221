//! An item of one daemon as the request that makes it an item of another.
//!
//! A request says when it is due and under which id, and nothing of what the first daemon has tried: so
//! attempts begin anew, and a member of a window is due at the window's end, whatever else comes for its
//! customer.

use super::batch::item_id;
use super::dead_letter::BROKER_DEATHS;
use super::fields::{self, Fields};
use super::identity::identity;
use super::json::media_type;
use super::message::{RequestLimits, ENVELOPE};
use super::properties::{parse_table, set_number, set_text, Basic};
use super::request::{request, Incoming};
use base64::prelude::{Engine as _, BASE64_STANDARD};
use lapin::types::FieldTable;
use lapin::BasicProperties;
use serde_json::json;
use tidegate_config::terms::{batch_header, FIRST_PLAUSIBLE_MS};
use tidegate_config::Readings;
use tidegate_types::event::Stored;
use tidegate_types::{AssignedId, NewItem, RequestBody};

/// See the module.
#[derive(Clone, Debug)]
pub struct MovedRequest {
    /// Properties, with headers.
    pub properties: BasicProperties,
    /// Payload of the message.
    pub body: Vec<u8>,
}

impl MovedRequest {
    /// The request for an item of the store with this identity, to be published with the application as
    /// routing key. `None`: its content is missing or damaged.
    pub fn of(item: &Stored, store_identity: u64) -> Option<Self> {
        let content = item.content.as_ref()?;
        let (basic, table) = Basic::parse(&content.properties)?;
        let id = item_id(content, store_identity, AssignedId::of(item.key, item.accepted_due));
        let came = parse_table(table);
        let came_back = came.contains_key(batch_header::BATCH);
        let mut headers = FieldTable::default();
        for (name, value) in &came {
            // With a broker's note of a death, a message that came back has no own time.
            let died = came_back && BROKER_DEATHS.iter().any(|prefix| name.as_str().starts_with(prefix));
            if !Fields::is_field(name.as_str()) && !died {
                headers.insert(name.clone(), value.clone());
            }
        }
        set_text(&mut headers, fields::APPLICATION, &item.application);
        if let Some(customer) = &item.customer {
            set_text(&mut headers, fields::CUSTOMER, customer);
        }
        set_number(&mut headers, fields::DELIVER_AT, item.due);
        let expiry = expiry_of(item);
        if let Some(expiry) = expiry {
            set_number(&mut headers, fields::DELIVER_BEFORE, expiry);
        }
        set_text(&mut headers, fields::ON_DUPLICATE, "keep");
        set_text(&mut headers, fields::MOVED, &format!("{store_identity:016x}"));
        if let Some(tries) = item.retry.checked_sub(1) {
            set_number(&mut headers, batch_header::RETRY, tries.into());
        }
        let basic = Basic { message_id: Some(&id), ..basic };
        let kind = basic.content_type.map(str::to_owned);
        let is_envelope = kind.as_deref().is_some_and(|kind| media_type(kind).eq_ignore_ascii_case(ENVELOPE));
        let (properties, body) = if is_envelope {
            // It came in an envelope, so its body was not read as one. The terms of an envelope are in it.
            let mut body = json!({
                "application": &*item.application,
                "deliver_at": item.due,
                "id": id,
                "content_type": kind,
                "payload_base64": BASE64_STANDARD.encode(&content.body),
            });
            if let Some(customer) = &item.customer {
                body["customer"] = (**customer).into();
            }
            if let Some(expiry) = expiry {
                body["deliver_before"] = expiry.into();
            }
            let basic = Basic { content_type: Some(ENVELOPE), ..basic };
            (basic.to_amqp(headers), body.to_string().into_bytes())
        } else {
            (basic.to_amqp(headers), content.body.clone())
        };
        Some(MovedRequest { properties, body })
    }

    /// Reads the request as a daemon with these settings will, at `now` (UTC ms), and compares what it makes
    /// of it with the item.
    ///
    /// # Errors
    /// Why it would not be that item, as a sentence.
    pub fn check(
        &self,
        item: &Stored,
        limits: &RequestLimits,
        readings: &Readings,
        now: u64,
    ) -> Result<(), String> {
        let incoming = Incoming {
            exchange: "moved",
            routing_key: &item.application,
            properties: self.properties.clone(),
            body: self.body.clone(),
            received: now,
        };
        let read = match request(incoming, limits, readings, 0) {
            RequestBody::Items(mut items) if items.len() == 1 => items.remove(0),
            RequestBody::Rejected(rejected) => return Err(rejected.dead.error.into()),
            RequestBody::Items(_) | RequestBody::Command(..) | RequestBody::Elsewhere(_) => {
                return Err("it would be read as something else than one request".to_owned());
            }
        };
        if let Some(over) = &read.over {
            return Err(over.error.to_string());
        }
        match self.difference(item, &read, now) {
            Some(what) => Err(format!("it would be read with another {what}")),
            None => Ok(()),
        }
    }

    /// The first part in which the item read differs from the item.
    fn difference(&self, item: &Stored, read: &NewItem, now: u64) -> Option<&'static str> {
        let id = self.properties.message_id().as_ref().map_or("", |id| id.as_str());
        let body = item.content.as_ref().map(|content| &content.body);
        let parts = [
            ("application", *read.application == *item.application),
            ("customer", read.customer.as_deref() == item.customer.as_deref()),
            // A past time is now.
            ("time", read.at == Some(item.due.max(now))),
            ("expiry", read.expiry == expiry_of(item)),
            ("id", read.identity == Some(identity(&item.application, id))),
            ("body", Some(&read.content.body) == body),
        ];
        parts.into_iter().find(|(_, same)| !same).map(|(what, _)| what)
    }
}

/// Its expiry as a number that is not taken for seconds. All of these are long over.
fn expiry_of(item: &Stored) -> Option<u64> {
    item.expiry.map(|expiry| expiry.max(FIRST_PLAUSIBLE_MS))
}
