//! In the place of a delayed exchange: producers of RabbitMQ's delayed-message-exchange plugin publish as they did, to
//! another exchange name, and consumers find what they found.
//!
//! The cases are the examples of the plugin's documentation and of its own test suite (original and fork), with
//! shorter delays; each says which. `format = "passthrough"` everywhere. Where tidegate differs on purpose, the test
//! says so: the routing key names the application, `x-delay` stays as it came, nothing is dropped.

mod copies;
mod delays;
mod examples;
mod tries;
