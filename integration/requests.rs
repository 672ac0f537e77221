//! What a request may look like: headers, own times, envelopes, formats, commands; and what becomes of one that
//! cannot be understood.

mod envelope;
mod fields;
mod formats;
mod lines;
mod passed_on;
mod rejected;
