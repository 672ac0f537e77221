//! The format of one row of a bucket, which records how an item ended. Pure.
//!
//! Version 2, in this order. Integers without a width, texts and the checksum are as in an item's record:
//!
//! ```text
//! version u8 | end u8 | epoch | at | due | attempts | fingerprint u64 LE | customer? u8 | [customer]
//!   | batch: 16 bytes (sent), nothing (cancelled), reason u8, error (dead) | crc32c u32 LE
//! ```
//!
//! The checksum covers the identity, which is the row's key, and everything before itself. *Epoch* is the
//! commit number of the bucket's beginning under which the row was written. A bucket that began anew may
//! still contain rows of an earlier epoch. They do not count, so that none of them hides an entry of another
//! bucket.

use super::fields::{put_bytes, put_varint, reason_code, seal, unseal, FieldReader, RecordError};
use std::sync::Arc;
use tidegate_types::event::BUCKETS;
use tidegate_types::{BatchId, Dead, End, Ended, Identity};

/// Number of the commit in which each bucket last began: its epoch.
pub(crate) type Epochs = [u64; BUCKETS as usize];

/// The version byte that this code writes.
pub const VERSION: u8 = 2;

const SENT: u8 = 1;
const CANCELLED: u8 = 2;
const DEAD: u8 = 3;
const CANCELLED_AGAIN: u8 = 4;

/// The row of `identity` in a bucket that is in epoch `epoch`.
pub fn encode(identity: Identity, epoch: u64, ended: &Ended) -> Vec<u8> {
    let texts = ended.customer.as_ref().map_or(0, |c| c.len());
    let mut out = Vec::with_capacity(64 + texts);
    out.push(VERSION);
    out.push(match ended.end {
        End::Sent(_) => SENT,
        End::Cancelled => CANCELLED,
        End::CancelledAgain => CANCELLED_AGAIN,
        End::Dead(_) => DEAD,
    });
    for number in [epoch, ended.at, ended.due, ended.attempts.into()] {
        put_varint(&mut out, number);
    }
    out.extend_from_slice(&ended.fingerprint.to_le_bytes());
    out.push(u8::from(ended.customer.is_some()));
    if let Some(customer) = &ended.customer {
        put_bytes(&mut out, customer.as_bytes());
    }
    match &ended.end {
        End::Sent(batch) => out.extend_from_slice(&batch.0),
        End::Cancelled | End::CancelledAgain => {}
        End::Dead(dead) => {
            out.push(reason_code(dead.reason));
            put_bytes(&mut out, dead.error.as_bytes());
        }
    }
    seal(&identity.to_bytes(), &mut out);
    out
}

/// Reads the row of `identity`: the epoch of its bucket, and how the item ended.
///
/// # Errors
///
/// A [`RecordError`] for any input that [`encode`] did not make for this identity; never a panic.
pub fn decode(identity: Identity, bytes: &[u8]) -> Result<(u64, Ended), RecordError> {
    let mut r = FieldReader(unseal(&identity.to_bytes(), bytes)?);
    let version = r.byte("version")?;
    if version != VERSION {
        return Err(RecordError::Version { found: version, known: VERSION });
    }
    let end = r.byte("end")?;
    let (epoch, at, due) = (r.varint("epoch")?, r.varint("at")?, r.varint("due")?);
    let attempts = r.u32("attempts")?;
    let fingerprint = u64::from_le_bytes(r.array("fingerprint")?);
    let customer = match r.byte("customer")? {
        0 => None,
        1 => Some(Arc::from(r.text("customer")?)),
        other => return Err(RecordError::Flags(other)),
    };
    let end = match end {
        SENT => End::Sent(BatchId(r.array("batch")?)),
        CANCELLED => End::Cancelled,
        CANCELLED_AGAIN => End::CancelledAgain,
        DEAD => End::Dead(Arc::new(Dead { reason: r.reason()?, error: r.text("error")?.into() })),
        other => return Err(RecordError::End(other)),
    };
    r.end()?;
    Ok((epoch, Ended { end, at, due, attempts, fingerprint, customer }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use tidegate_types::Reason;

    fn end() -> impl Strategy<Value = End> {
        prop_oneof![
            any::<[u8; 16]>().prop_map(|id| End::Sent(BatchId(id))),
            Just(End::Cancelled),
            Just(End::CancelledAgain),
            (0..Reason::ALL.len(), ".{0,30}").prop_map(|(reason, error)| {
                End::Dead(Arc::new(Dead { reason: Reason::ALL[reason], error: error.into() }))
            }),
        ]
    }

    prop_compose! {
        fn ended()(
            end in end(),
            at in any::<u64>(),
            due in any::<u64>(),
            attempts in any::<u32>(),
            fingerprint in any::<u64>(),
            customer in option::of(".{0,20}"),
        ) -> Ended {
            Ended { end, at, due, attempts, fingerprint, customer: customer.map(Arc::from) }
        }
    }

    prop_compose! {
        fn identity()(bytes in any::<[u8; 16]>()) -> Identity {
            Identity::from_bytes(bytes)
        }
    }

    fn sealed(identity: Identity, mut fields: Vec<u8>) -> Vec<u8> {
        seal(&identity.to_bytes(), &mut fields);
        fields
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

        #[test]
        fn what_is_written_is_read(identity in identity(), epoch in any::<u64>(), ended in ended()) {
            let bytes = encode(identity, epoch, &ended);
            prop_assert_eq!(decode(identity, &bytes).unwrap(), (epoch, ended));
        }

        #[test]
        fn a_row_under_another_identity_is_refused(a in identity(), b in identity(), ended in ended()) {
            prop_assume!(a != b);
            let mismatch = matches!(decode(b, &encode(a, 1, &ended)), Err(RecordError::Checksum { .. }));
            prop_assert!(mismatch);
        }

        #[test]
        fn any_bytes_are_read_or_refused(identity in identity(), bytes in vec(any::<u8>(), 0..100)) {
            prop_assert!(decode(identity, &bytes).is_err());
            if let Ok((epoch, ended)) = decode(identity, &sealed(identity, bytes)) {
                // A row that is readable by chance must be a valid one.
                let again = encode(identity, epoch, &ended);
                prop_assert_eq!(decode(identity, &again).unwrap(), (epoch, ended));
            }
        }

        /// Arbitrary bytes rarely pass the check of the version; these always do.
        #[test]
        fn any_fields_are_read_or_refused(
            identity in identity(),
            end in 0..5_u8,
            rest in vec(any::<u8>(), 0..100),
        ) {
            let mut fields = vec![VERSION, end];
            fields.extend_from_slice(&rest);
            if let Ok((epoch, ended)) = decode(identity, &sealed(identity, fields)) {
                let again = encode(identity, epoch, &ended);
                prop_assert_eq!(decode(identity, &again).unwrap(), (epoch, ended));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(32) })]

        #[test]
        fn every_flipped_bit_and_every_cut_is_noticed(identity in identity(), ended in ended()) {
            let good = encode(identity, 9, &ended);
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(decode(identity, &bad).is_err(), "bit {}", bit);
            }
            for len in 0..good.len() {
                prop_assert!(decode(identity, &good[..len]).is_err(), "cut to {}", len);
            }
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let identity = Identity::assigned(7);
        let of = |fields: &[u8]| decode(identity, &sealed(identity, fields.to_vec())).unwrap_err();
        let head = |end: u8, rest: &[u8]| {
            let fields = [VERSION, end, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0];
            of(&[fields.as_slice(), rest].concat())
        };
        assert_eq!(of(&[9]), RecordError::Version { found: 9, known: VERSION });
        assert_eq!(of(&[VERSION, CANCELLED, 1, 2]), RecordError::Truncated("due"));
        assert_eq!(of(&[VERSION, CANCELLED, 1, 2, 3, 4, 7]), RecordError::Truncated("fingerprint"));
        assert_eq!(head(CANCELLED, &[7]), RecordError::Flags(7));
        assert_eq!(head(9, &[0]), RecordError::End(9));
        assert_eq!(head(SENT, &[0, 5]), RecordError::Truncated("batch"));
        assert_eq!(head(DEAD, &[0, 99]), RecordError::Reason(99));
        assert_eq!(head(CANCELLED, &[0, 5]), RecordError::Trailing(1));
    }
}
