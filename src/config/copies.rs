//! The parts of a request that go into its entry of a batch beside the contract's own fields: `copy_headers`
//! and `copy_properties`.
//!
//! Both lists are checked here, also as CloudEvents attributes, so that a name that cannot be passed on is a
//! fault of the configuration and not a missing field later.

use super::section::Section;
use super::terms::{batch_header, request_header, DEAD_PREFIX, NEVER_COPIED};
use super::units::{Text, Words};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_types::Format;

/// Most headers that one application may pass on; each request is searched for each of them.
const MOST_HEADERS: usize = 32;
/// Longest name of a header, bytes: the limit of the protocol.
const LONGEST_NAME: usize = 255;

/// Members that every event has, independently of what is passed on.
const EVENT_MEMBERS: [&str; 11] = [
    "specversion",
    "id",
    "source",
    "subject",
    "type",
    "time",
    "datacontenttype",
    "dataschema",
    "data",
    "due",
    "contentencoding",
];

/// A property of a request that can be passed on. The other properties are in every entry (`message_id`,
/// `content_type`, `content_encoding`), travel as a header (`user_id`), or never travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopiedProperty {
    /// Relates a reply to its request.
    CorrelationId,
    /// The queue for replies.
    ReplyTo,
    /// The type of the message; `type` in the protocol.
    Kind,
    /// When the producer created the message, seconds.
    Timestamp,
    /// A priority from 0 to 255.
    Priority,
    /// The program that created the message.
    AppId,
    /// The cluster of the producer.
    ClusterId,
}

impl CopiedProperty {
    /// All properties with their names, in their order in an entry. The store keeps positions in this list:
    /// new ones come last.
    pub const ALL: &'static [(&'static str, CopiedProperty)] = &[
        ("correlation_id", CopiedProperty::CorrelationId),
        ("reply_to", CopiedProperty::ReplyTo),
        ("type", CopiedProperty::Kind),
        ("timestamp", CopiedProperty::Timestamp),
        ("priority", CopiedProperty::Priority),
        ("app_id", CopiedProperty::AppId),
        ("cluster_id", CopiedProperty::ClusterId),
    ];

    /// The protocol's name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, property)| *property == self).map_or("", |(name, _)| name)
    }
}

/// The headers and properties that an application's batches pass on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Properties, none of them twice.
    pub properties: Vec<CopiedProperty>,
    /// Names of headers, none of them twice.
    pub headers: Vec<String>,
}

impl Copies {
    /// Whether nothing is passed on.
    pub fn is_empty(&self) -> bool {
        self.properties.is_empty() && self.headers.is_empty()
    }
}

/// The CloudEvents attribute for a name: its letters in lower case and its digits, as CloudEvents allow no
/// other characters.
pub fn event_name(name: &str) -> String {
    let allowed = name.bytes().filter(u8::is_ascii_alphanumeric);
    allowed.map(|byte| char::from(byte.to_ascii_lowercase())).collect()
}

/// Whether every event has a member of this name.
pub fn is_event_member(name: &str) -> bool {
    EVENT_MEMBERS.contains(&name)
}

/// Reads `copy_headers` and `copy_properties` of one application. `is_base` is true for `[defaults]`.
pub(crate) fn copies(
    s: &mut Section<'_, '_>,
    base: &Arc<Copies>,
    format: Format,
    is_base: bool,
) -> Arc<Copies> {
    let headers = s.list("copy_headers", || Text);
    let properties = s.list("copy_properties", || Words(CopiedProperty::ALL));
    let mut found = Copies::clone(base);
    if let Some(names) = headers {
        let names: Vec<String> = names.into_iter().map(|(_, name)| name).collect();
        header_faults(&names).into_iter().for_each(|text| s.fault("copy_headers", text));
        if !s.failed(&["copy_headers"]) {
            found.headers = names;
        }
    }
    if let Some(list) = properties {
        found.properties.clear();
        for (_, property) in list {
            if found.properties.contains(&property) {
                s.fault("copy_properties", format!("names {:?} twice", property.name()));
            } else {
                found.properties.push(property);
            }
        }
    }
    let written: Vec<&'static str> =
        ["copy_headers", "copy_properties"].into_iter().filter(|key| s.is_set(key)).collect();
    match format {
        Format::Passthrough => {
            for key in written {
                s.warn(key, "has no effect with format = \"passthrough\", which carries everything");
            }
        }
        Format::CloudEvents if !s.failed(&["copy_headers", "copy_properties"]) => {
            // A table that equals `[defaults]` was checked there.
            let key =
                written.first().copied().or_else(|| (is_base || s.is_set("format")).then_some("format"));
            if let Some(key) = key {
                event_faults(&found).into_iter().for_each(|text| s.fault(key, text));
            }
        }
        Format::CloudEvents | Format::Json | Format::Ndjson => {}
    }
    Arc::new(found)
}

/// The faults in names of headers, for all formats.
fn header_faults(names: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    if names.len() > MOST_HEADERS {
        faults.push(format!("names {} headers: at most {MOST_HEADERS}", names.len()));
        return faults;
    }
    for (index, name) in names.iter().enumerate() {
        // Such headers are already in an entry, or concern another message.
        let own = request_header::ALL.contains(&name.as_str())
            || batch_header::ALL.contains(&name.as_str())
            || name.starts_with(DEAD_PREFIX);
        if name.is_empty() {
            faults.push("holds an empty name".into());
        } else if name.len() > LONGEST_NAME {
            faults.push(format!("holds a name of {} bytes: at most {LONGEST_NAME}", name.len()));
        } else if names[..index].contains(name) {
            faults.push(format!("names {name:?} twice"));
        } else if own {
            faults.push(format!("names {name:?}, which tidegate itself reads or writes"));
        } else if NEVER_COPIED.contains(&name.as_str()) {
            faults.push(format!("names {name:?}, which is never copied"));
        }
    }
    faults
}

/// The faults in the names as attributes of events.
fn event_faults(copies: &Copies) -> Vec<String> {
    let mut faults = Vec::new();
    let mut taken: BTreeMap<String, &str> = BTreeMap::new();
    for (name, property) in CopiedProperty::ALL {
        // The attribute `type` of an event is always the request's type.
        if copies.properties.contains(property) && *property != CopiedProperty::Kind {
            taken.insert(event_name(name), name);
        }
    }
    for name in &copies.headers {
        let event = event_name(name);
        if event.is_empty() {
            faults.push(format!(
                "{name:?} has neither letters nor digits, of which CloudEvents names are made"
            ));
        } else if is_event_member(&event) {
            faults.push(format!("{name:?} would be {event} in CloudEvents, which every event has already"));
        } else if let Some(other) = taken.insert(event.clone(), name) {
            faults.push(format!("{other:?} and {name:?} would both be {event} in CloudEvents"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_attributes() {
        for (name, event) in [
            ("traceparent", "traceparent"),
            ("x-tenant", "xtenant"),
            ("X-Request-ID", "xrequestid"),
            ("correlation_id", "correlationid"),
            ("größe2", "gre2"),
            ("--", ""),
        ] {
            assert_eq!(event_name(name), event, "{name}");
        }
    }

    #[test]
    fn every_property_may_stand_beside_every_other() {
        let properties = CopiedProperty::ALL.iter().map(|(_, property)| *property).collect();
        assert_eq!(event_faults(&Copies { properties, headers: vec![] }), [] as [&str; 0]);
    }
}
