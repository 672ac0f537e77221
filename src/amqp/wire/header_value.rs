//! The values of headers by their meaning.

use lapin::types::{AMQPValue, DecimalValue};

/// A header's value by its meaning: AMQP has seven kinds of integers, and three of text.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HeaderValue<'a> {
    Absent,
    Integer(i64),
    Text(&'a [u8]),
    Float(f64),
    Decimal(DecimalValue),
    /// In seconds, by the protocol; may be a negative number as two's complement.
    Timestamp(u64),
    Other,
}

pub(crate) fn header_value(value: &AMQPValue) -> HeaderValue<'_> {
    match value {
        AMQPValue::Void => HeaderValue::Absent,
        AMQPValue::ShortShortInt(number) => HeaderValue::Integer((*number).into()),
        AMQPValue::ShortShortUInt(number) => HeaderValue::Integer((*number).into()),
        AMQPValue::ShortInt(number) => HeaderValue::Integer((*number).into()),
        AMQPValue::ShortUInt(number) => HeaderValue::Integer((*number).into()),
        AMQPValue::LongInt(number) => HeaderValue::Integer((*number).into()),
        AMQPValue::LongUInt(number) => HeaderValue::Integer((*number).into()),
        AMQPValue::LongLongInt(number) => HeaderValue::Integer(*number),
        AMQPValue::ShortString(text) => HeaderValue::Text(text.as_str().as_bytes()),
        AMQPValue::LongString(text) => HeaderValue::Text(text.as_bytes()),
        AMQPValue::ByteArray(text) => HeaderValue::Text(text.as_slice()),
        AMQPValue::Float(number) => HeaderValue::Float((*number).into()),
        AMQPValue::Double(number) => HeaderValue::Float(*number),
        AMQPValue::DecimalValue(number) => HeaderValue::Decimal(*number),
        AMQPValue::Timestamp(seconds) => HeaderValue::Timestamp(*seconds),
        AMQPValue::Boolean(_) | AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) => HeaderValue::Other,
    }
}
