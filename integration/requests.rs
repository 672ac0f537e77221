//! Requests: headers, own times, envelopes, formats, commands; and malformed requests.

mod envelope;
mod fields;
mod formats;
mod lines;
mod passed_on;
mod rejected;
