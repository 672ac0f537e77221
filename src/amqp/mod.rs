//! The two AMQP ends.

pub mod wire;
