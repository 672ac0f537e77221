//! Messages as tests write and read them: requests to the daemon, and batches from it.

use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::BasicProperties;
use serde_json::Value;

/// A long string value.
pub fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value.as_bytes()))
}

/// One message to publish: persistent, and with what the test sets.
#[derive(Clone, Debug, Default)]
pub struct Push {
    /// Exchange; empty is the default one.
    pub exchange: String,
    /// Routing key.
    pub key: String,
    /// Headers.
    pub headers: FieldTable,
    /// All other properties.
    pub properties: BasicProperties,
    /// Body.
    pub body: Vec<u8>,
}

impl Push {
    /// A message for `exchange` with routing key `key` and this body.
    pub fn new(exchange: &str, key: &str, body: impl Into<Vec<u8>>) -> Push {
        Push { exchange: exchange.to_owned(), key: key.to_owned(), body: body.into(), ..Push::default() }
    }

    /// Sets a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: AMQPValue) -> Self {
        self.headers.insert(name.into(), value);
        self
    }

    /// Sets a header to a long string.
    #[must_use]
    pub fn with(self, name: &str, value: &str) -> Self {
        self.header(name, text(value))
    }

    /// Sets a header to a signed 64-bit integer.
    #[must_use]
    pub fn number(self, name: &str, value: i64) -> Self {
        self.header(name, AMQPValue::LongLongInt(value))
    }

    /// Header `x-customer`.
    #[must_use]
    pub fn customer(self, name: &str) -> Self {
        self.with("x-customer", name)
    }

    /// Header `x-delay` in milliseconds.
    #[must_use]
    pub fn delay(self, ms: i64) -> Self {
        self.number("x-delay", ms)
    }

    /// Property `message_id`.
    #[must_use]
    pub fn id(mut self, id: &str) -> Self {
        self.properties = self.properties.with_message_id(id.into());
        self
    }

    /// Property `content_type`.
    #[must_use]
    pub fn content_type(mut self, value: &str) -> Self {
        self.properties = self.properties.with_content_type(value.into());
        self
    }

    /// Property `type`.
    #[must_use]
    pub fn kind(mut self, value: &str) -> Self {
        self.properties = self.properties.with_type(value.into());
        self
    }
}

/// One message as an application received it.
#[derive(Clone, Debug)]
pub struct Received {
    /// Wall clock at its arrival, UTC microseconds.
    pub at_us: u64,
    /// Exchange it was published to.
    pub exchange: String,
    /// Routing key.
    pub key: String,
    /// Whether it was delivered before (to this consumer, not to tidegate).
    pub redelivered: bool,
    /// Properties and headers.
    pub properties: BasicProperties,
    /// Body.
    pub body: Vec<u8>,
}

impl Received {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&AMQPValue> {
        self.properties.headers().as_ref()?.inner().get(name)
    }

    /// A header that must be a long string.
    pub fn text(&self, name: &str) -> Option<String> {
        let value = self.header(name)?;
        let long = value.as_long_string().unwrap_or_else(|| panic!("{name} is no long string: {value:?}"));
        Some(String::from_utf8(long.as_bytes().to_vec()).expect("UTF-8"))
    }

    /// A header that must be a signed 64-bit integer.
    pub fn number(&self, name: &str) -> Option<i64> {
        let value = self.header(name)?;
        Some(value.as_long_long_int().unwrap_or_else(|| panic!("{name} is no 64-bit integer: {value:?}")))
    }

    /// Panics if it arrived before its `x-due`, with a verdict that no second run excuses.
    pub fn is_not_early(&self) {
        let early_us = -self.lateness_us();
        assert!(early_us <= 0, "VERDICT: {} is early by {early_us} us", self.id());
    }

    /// Property `message_id`, empty when absent.
    pub fn id(&self) -> String {
        self.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default()
    }

    /// Body as UTF-8.
    pub fn body_text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("a body in UTF-8")
    }

    /// Body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("no JSON ({e}): {}", String::from_utf8_lossy(&self.body)))
    }

    /// Microseconds between header `x-due` and the arrival here; negative is early.
    pub fn lateness_us(&self) -> i64 {
        let due = self.number("x-due").expect("header x-due");
        i64::try_from(self.at_us).expect("a sane clock") - due * 1000
    }

    /// Parses the body of format `json`; panics if it does not match the contract.
    pub fn batch(self) -> Batch {
        let body = self.json();
        let keys: Vec<&str> = body.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(keys.len(), 4, "keys of a batch: {keys:?}");
        let items = body["items"].as_array().expect("an array of items").iter().map(Item::read).collect();
        Batch {
            application: body["application"].as_str().expect("application").to_owned(),
            customer: body["customer"].as_str().map(ToOwned::to_owned),
            id: body["batch"].as_str().expect("batch").to_owned(),
            items,
            message: self,
        }
    }
}

/// A batch of format `json`.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Application name.
    pub application: String,
    /// Customer, where there is one.
    pub customer: Option<String>,
    /// Batch id.
    pub id: String,
    /// Its items, in order.
    pub items: Vec<Item>,
    /// The message it came in.
    pub message: Received,
}

impl Batch {
    /// The ids of its items, in order.
    pub fn ids(&self) -> Vec<&str> {
        self.items.iter().map(|i| i.id.as_str()).collect()
    }
}

/// One item of a batch of format `json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Item id.
    pub id: String,
    /// UTC ms.
    pub due: i64,
    /// UTC ms.
    pub received: i64,
    /// Content type, where it has one.
    pub content_type: Option<String>,
    /// The embedded payload.
    pub payload: Option<Value>,
    /// The payload in base64.
    pub base64: Option<String>,
}

impl Item {
    fn read(value: &Value) -> Item {
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(ToOwned::to_owned);
        Item {
            id: text("id").expect("an item's id"),
            due: value["due"].as_i64().expect("an item's due"),
            received: value["received"].as_i64().expect("an item's receipt"),
            content_type: text("content_type"),
            payload: value.get("payload").cloned(),
            base64: text("payload_base64"),
        }
    }
}
