//! Which messages fit into a frame, and what remains of a dead letter that does not.

use super::super::{encode, fit, Outgoing};
use super::batch::{batch, names, out_item};
use super::*;
use amq_protocol::frame::{gen_frame, AMQPContentHeader, AMQPFrame, WriteContext};
use proptest::prelude::*;
use std::sync::Arc;
use tidegate_types::{Batch, Dead, Format};

/// Bytes of the header frame as the client library writes it.
fn written(out: &Outgoing) -> usize {
    let header = AMQPContentHeader {
        class_id: 60,
        body_size: out.body.len() as u64,
        properties: out.properties.clone(),
    };
    let frame = AMQPFrame::Header(1, header);
    let bytes = gen_frame(&frame)(WriteContext::from(Vec::new())).unwrap().into_inner().0;
    bytes.len()
}

fn with_headers(sizes: &[usize]) -> NewItem {
    let mut headers = FieldTable::default();
    for (n, size) in sizes.iter().enumerate() {
        headers.insert(format!("h{n}").into(), text(&"x".repeat(*size)));
    }
    item(take(BasicProperties::default().with_headers(headers), b"body"))
}

fn whole(sizes: &[usize]) -> Batch {
    batch(Format::Passthrough, vec![out_item(1, with_headers(sizes))])
}

fn letter(sizes: &[usize], error: &str) -> Batch {
    let verdict = Dead { reason: Reason::Refused, error: error.into() };
    Batch { dead: Some(Arc::new(verdict)), ..whole(sizes) }
}

fn encoded(batch: &Batch) -> Outgoing {
    encode(batch, &names(), STORE, NOW)
}

#[test]
fn the_limit_is_met_to_the_byte() {
    let batch = whole(&[20_000]);
    let exact = u32::try_from(written(&encoded(&batch))).unwrap();
    assert_eq!(fit(&mut encoded(&batch), &batch, exact), Ok(()));
    let error = fit(&mut encoded(&batch), &batch, exact - 1).unwrap_err();
    assert!(error.contains(&format!("have {} bytes", exact - 20)), "{error}");
    assert!(error.contains(&format!("holds {};", exact - 21)), "{error}");
}

#[test]
fn a_dead_letter_gives_up_its_largest_headers_and_keeps_what_tells_of_it() {
    let dead = letter(&[300, 9_000, 200, 5_000], "a sentence");
    let mut out = encoded(&dead);
    fit(&mut out, &dead, 8_192).unwrap();
    assert!(written(&out) <= 8_192);
    let headers = out.properties.headers().as_ref().unwrap().inner();
    let names: Vec<&str> = headers.keys().map(|name| name.as_str()).collect();
    let kept = ["h0", "h2", "h3", "x-application", "x-attempt", "x-batch", "x-customer", "x-due"];
    assert_eq!(names[..8], kept);
    assert_eq!(names[8..], ["x-tidegate-attempts", "x-tidegate-error", "x-tidegate-reason"]);
}

#[test]
fn a_sentence_is_cut_where_nothing_else_is_left() {
    let dead = letter(&[], &"ä".repeat(5_000));
    let mut out = encoded(&dead);
    fit(&mut out, &dead, 4_096).unwrap();
    assert!((4_090..=4_096).contains(&written(&out)), "{}", written(&out));
}

proptest! {
    #[test]
    fn whatever_goes_out_fits(
        sizes in prop::collection::vec(0_usize..6_000, 0..12),
        error in 0_usize..3_000,
        frame_max in 4_096_u32..70_000,
    ) {
        let dead = letter(&sizes, &"e".repeat(error));
        let mut out = encoded(&dead);
        prop_assert_eq!(fit(&mut out, &dead, frame_max), Ok(()));
        prop_assert!(written(&out) <= frame_max as usize);
        let batch = whole(&sizes);
        let mut out = encoded(&batch);
        let fits = written(&out) <= frame_max as usize;
        prop_assert_eq!(fit(&mut out, &batch, frame_max).is_ok(), fits);
    }

    #[test]
    fn what_the_intake_takes_leaves_by_the_frame_that_it_was_taken_under(
        sizes in prop::collection::vec(0_usize..9_000, 0..8),
        frame_max in 8_192_u32..131_072,
    ) {
        let mut headers = FieldTable::default();
        for (n, size) in sizes.iter().enumerate() {
            headers.insert(format!("h{n}").into(), text(&"x".repeat(*size)));
        }
        let incoming = Incoming {
            exchange: "in",
            routing_key: "orders",
            properties: BasicProperties::default().with_headers(headers),
            body: Vec::new(),
            received: NOW,
        };
        if let RequestBody::Items(mut items) = read(incoming, &RequestLimits { frame_max, ..LIMITS }) {
            let batch = batch(Format::Passthrough, vec![out_item(1, items.remove(0))]);
            let mut out = encoded(&batch);
            prop_assert_eq!(fit(&mut out, &batch, frame_max), Ok(()));
            prop_assert!(written(&out) <= frame_max as usize);
        }
    }
}
