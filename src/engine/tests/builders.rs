//! Settings, items and commands for tests, and the results of a world.

use super::world::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_types::event::*;
use tidegate_types::*;

pub(super) fn settings() -> Settings {
    settings_of(AppSettings::default())
}

pub(super) fn settings_of(defaults: AppSettings) -> Settings {
    Settings {
        defaults: Arc::new(defaults),
        applications: BTreeMap::new(),
        hold_max: None,
        max_delay: 3_650 * 86_400_000,
        budget: Budget::of(64 << 20),
        customers: 1_000,
        max_applications: 1_000,
        max_in_flight: 100,
        max_in_flight_bytes: 8 << 20,
        thresholds: Thresholds::default(),
    }
}

pub(super) fn with(change: impl FnOnce(&mut AppSettings)) -> Settings {
    let mut app = AppSettings::default();
    change(&mut app);
    settings_of(app)
}

/// A fingerprint of a payload, its time and its rule.
pub(super) fn fingerprint(payload: &str, at: Option<u64>, rule: DuplicateRule) -> u64 {
    let text = payload.bytes().chain(at.unwrap_or(0).to_be_bytes()).chain([rule as u8]);
    text.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// An item; `id` doubles as its payload.
pub(super) fn item(application: &str, customer: &str, id: &str) -> NewItem {
    NewItem {
        application: application.into(),
        customer: (!customer.is_empty()).then(|| customer.into()),
        at: None,
        expiry: None,
        identity: None,
        on_duplicate: DuplicateRule::Keep,
        fingerprint: fingerprint(id, None, DuplicateRule::Keep),
        tried: Tried::default(),
        over: None,
        weight: 100,
        content: Arc::new(Content { properties: vec![], body: id.as_bytes().to_vec(), json: false }),
    }
}

/// Names an item by a text, where the request parser would use a hash of it.
pub(super) fn identity(application: &str, id: &str) -> Identity {
    let mut hash = [0u8; 16];
    for (place, byte) in application.bytes().chain([0]).chain(id.bytes()).enumerate() {
        hash[place % 16] = hash[place % 16].wrapping_mul(31).wrapping_add(byte).rotate_left(3) ^ place as u8;
    }
    Identity::given(hash)
}

pub(super) fn with_id(id: &str, rule: DuplicateRule, item: NewItem) -> NewItem {
    let fingerprint = fingerprint(&String::from_utf8_lossy(&item.content.body), item.at, rule);
    NewItem { identity: Some(identity(&item.application, id)), on_duplicate: rule, fingerprint, ..item }
}

pub(super) fn target(application: &str, id: &str) -> Target {
    let identity = identity(application, id);
    Target { application: application.into(), id: id.into(), identity, assigned: None }
}

/// Names an item by the id that it was assigned.
pub(super) fn assigned(application: &str, key: Key, due: u64) -> Target {
    let assigned = Some(AssignedId::of(key, due));
    Target { identity: Identity::assigned(key.seq), assigned, ..target(application, "assigned") }
}

/// A request of application `a` that cannot be understood.
pub(super) fn rejected_request() -> RequestBody {
    let dead = Dead { reason: Reason::Invalid, error: "x-delay: not a number".into() };
    let content = Arc::new(Content { properties: vec![], body: b"?".to_vec(), json: false });
    let application = Some("a".into());
    RequestBody::Rejected(Box::new(Rejected { application, customer: None, dead, content, reply_to: None }))
}

pub(super) fn at(at: u64, item: NewItem) -> NewItem {
    NewItem { at: Some(at), ..item }
}

pub(super) fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

pub(super) fn text(content: &Content) -> String {
    String::from_utf8_lossy(&content.body).into_owned()
}

pub(super) fn name(item: &BatchItem) -> String {
    text(&item.content)
}

/// Loses the egress connection; all outcomes are unknown.
pub(super) fn lose_egress(w: &mut World) {
    let unknown = |(_, batch): (u64, Batch)| Settled { number: batch.number, outcome: Outcome::Unknown };
    let settled = std::mem::take(&mut w.out).into_iter().map(unknown).collect();
    w.input(Input::EgressLost);
    w.input(Input::Settled(settled));
}

/// Payloads that left, in order, and payloads of dead items with their reasons.
pub(super) fn ends(w: &World) -> (Vec<String>, Vec<(String, Reason)>) {
    let (mut sent, mut dead) = (vec![], vec![]);
    for (_, batch) in &w.delivered {
        for item in &batch.items {
            match &batch.dead {
                Some(verdict) => dead.push((name(item), verdict.reason)),
                None => sent.push(name(item)),
            }
        }
    }
    (sent, dead)
}
