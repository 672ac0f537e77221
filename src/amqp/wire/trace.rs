//! Trace contexts: those that requests carry, and the one that a batch leaves with (W3C Trace Context,
//! recommendation of November 2021, sections 3.2 and 3.3).
//!
//! A batch whose members belong to one trace continues that trace. A batch of several traces is the root of a
//! new one, and each member's context is in its entry, for links. Nothing is random: ids are derived from the
//! batch id and the number of the attempt, so an attempt that is seen twice is one span.

use std::fmt;
use tidegate_types::BatchId;

/// Most links of one span: the default limit of collectors.
pub const MOST_LINKS: usize = 128;
/// Trace id and span id.
pub type SpanName = ([u8; 16], [u8; 8]);

/// Header of a request, and of a batch.
pub(crate) const TRACEPARENT: &str = "traceparent";
/// What tracing systems add to it.
pub(crate) const TRACESTATE: &str = "tracestate";
/// Longest state that is passed on, bytes: what the recommendation asks everyone to carry.
const LONGEST_STATE: usize = 512;
/// Length of a context in version 00, the only one whose form is known completely.
const LENGTH: usize = 55;

/// A span in a trace, as others refer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanContext {
    /// Not all zero.
    pub trace: [u8; 16],
    /// Not all zero.
    pub span: [u8; 8],
    /// Its owner may have recorded it.
    pub sampled: bool,
}

impl SpanContext {
    /// Reads the text of a header. `None`: it is invalid, and counts as absent, as the recommendation
    /// demands.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let (known, rest) = text.split_at_checked(LENGTH)?;
        let [a, b, b'-', rest_of @ ..] = known else { return None };
        let version = hex_byte(*a, *b)?;
        // A later version adds its fields behind another dash.
        let whole =
            if version == 0 { rest.is_empty() } else { rest.first().is_none_or(|byte| *byte == b'-') };
        let (trace, behind) = rest_of.split_at_checked(32)?;
        let (span, flags) = behind.strip_prefix(b"-")?.split_at_checked(16)?;
        let [c, d] = flags.strip_prefix(b"-")? else { return None };
        let context =
            SpanContext { trace: hex(trace)?, span: hex(span)?, sampled: hex_byte(*c, *d)? & 1 == 1 };
        let named = context.trace != [0; 16] && context.span != [0; 8];
        (version != 0xff && whole && named).then_some(context)
    }
}

impl fmt::Display for SpanContext {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (u128::from_be_bytes(self.trace), u64::from_be_bytes(self.span));
        write!(out, "00-{trace:032x}-{span:016x}-{:02x}", u8::from(self.sampled))
    }
}

/// Contexts of the members of a batch, from which its own is made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traces<'a> {
    first: Option<(SpanContext, Option<&'a str>)>,
    /// Spans of the members, as many as a span may have links.
    links: Vec<SpanName>,
    several: bool,
    sampled: bool,
}

/// The context of an attempt to send a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchTrace {
    /// Its own, with a span of this attempt.
    pub(crate) context: SpanContext,
    /// The member's span that it continues; `None`: it is the root of a new trace.
    pub parent: Option<[u8; 8]>,
    /// Trace state of that member.
    pub state: Option<String>,
    /// Spans of members.
    pub links: Vec<SpanName>,
}

impl BatchTrace {
    /// Trace and span, if a member's may have been recorded: then this one is recorded as well.
    pub fn sampled(&self) -> Option<SpanName> {
        self.context.sampled.then_some((self.context.trace, self.context.span))
    }
}

impl<'a> Traces<'a> {
    /// Adds a member's context, if it has one, with its state.
    pub(crate) fn add(&mut self, member: Option<(SpanContext, Option<&'a str>)>) {
        let Some((context, state)) = member else { return };
        self.sampled |= context.sampled;
        if self.links.len() < MOST_LINKS {
            self.links.push((context.trace, context.span));
        }
        match self.first {
            None => self.first = Some((context, state)),
            Some((first, _)) if first.trace != context.trace => self.several = true,
            // The batch continues a span that was recorded, if there is one.
            Some((first, _)) if context.sampled && !first.sampled => self.first = Some((context, state)),
            Some(_) => {}
        }
    }

    /// The context of this attempt to send the batch. `None`: no member has one.
    pub(crate) fn of_attempt(self, batch: BatchId, attempt: u32) -> Option<BatchTrace> {
        let (first, state) = self.first?;
        let trace = if self.several { drawn("trace", batch, 0) } else { first.trace };
        let context = SpanContext { trace, span: drawn("span", batch, attempt), sampled: self.sampled };
        let goes_on = !self.several;
        let (parent, state) = (goes_on.then_some(first.span), state.filter(|_| goes_on).map(str::to_owned));
        Some(BatchTrace { context, parent, state, links: self.links })
    }
}

/// An id that looks random and is derived from the batch. All zero is no id.
fn drawn<const N: usize>(kind: &str, batch: BatchId, attempt: u32) -> [u8; N] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"tidegate ");
    hasher.update(kind.as_bytes());
    hasher.update(&batch.0);
    hasher.update(&attempt.to_le_bytes());
    let mut id = [0; N];
    hasher.finalize_xof().fill(&mut id);
    if id == [0; N] {
        id[N - 1] = 1;
    }
    id
}

/// A state that can be passed on: printable ASCII with a member at least, not too long.
pub(crate) fn state(text: &[u8]) -> Option<&str> {
    let good = (1..=LONGEST_STATE).contains(&text.len())
        && text.contains(&b'=')
        && text.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
    std::str::from_utf8(text).ok().filter(|_| good)
}

fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let mut out = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = hex_byte(pair[0], pair[1])?;
    }
    Some(out)
}

/// Of two digits in lower case: the recommendation allows no others.
fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    Some(digit(high)? << 4 | digit(low)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const BATCH: BatchId = BatchId([7; 16]);

    fn of(text: &str) -> SpanContext {
        SpanContext::parse(text.as_bytes()).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn a_context_is_read_as_the_recommendation_has_it() {
        assert_eq!(of(GOOD).to_string(), GOOD);
        assert!(!of(&GOOD.replace("-01", "-00")).sampled && of(&GOOD.replace("-01", "-ff")).sampled);
        assert_eq!(of(&format!("cc{}-more", &GOOD[2..])), of(GOOD), "a later version");
        for wrong in [
            "",
            "00",
            &GOOD[..54],
            &format!("{GOOD}-"),
            &format!("{GOOD}0"),
            &format!("ff{}", &GOOD[2..]),
            &format!("cc{}more", &GOOD[2..]),
            &GOOD.to_uppercase(),
            &GOOD.replace('-', "_"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
        ] {
            assert_eq!(SpanContext::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn members_of_one_trace_are_gone_on_with_and_others_are_linked_to() {
        assert_eq!(Traces::default().of_attempt(BATCH, 1), None);
        let mut traces = Traces::default();
        traces.add(None);
        traces.add(Some((of(&GOOD.replace("-01", "-00")), Some("a=1"))));
        let alone = traces.clone().of_attempt(BATCH, 1).unwrap();
        assert_eq!((alone.context.trace, alone.sampled()), (of(GOOD).trace, None));
        assert_eq!((alone.parent, alone.state.as_deref()), (Some(of(GOOD).span), Some("a=1")));
        assert_ne!(alone.context.span, of(GOOD).span);
        let sibling = GOOD.replace("00f067aa0ba902b7", "00f067aa0ba902b8");
        traces.add(Some((of(&sibling), None)));
        let same = traces.clone().of_attempt(BATCH, 1).unwrap();
        assert!(same.context.trace == of(GOOD).trace && same.sampled().is_some(), "one was sampled");
        assert_eq!(same.parent, Some(of(&sibling).span), "that one");
        traces.add(Some((of(&GOOD.replace("4bf9", "4bf8")), Some("b=2"))));
        let root = traces.clone().of_attempt(BATCH, 1).unwrap();
        assert!(root.context.trace != of(GOOD).trace, "a trace of its own");
        assert_eq!((root.parent, &root.state, root.links.len()), (None, &None, 3));
        // The same attempt is the same span, and the next one another of the same trace.
        assert_eq!(traces.clone().of_attempt(BATCH, 1), Some(root.clone()));
        let again = traces.of_attempt(BATCH, 2).unwrap();
        assert_eq!(again.context.trace, root.context.trace);
        assert_ne!(again.context.span, root.context.span);
    }

    #[test]
    fn a_state_is_printable_and_bounded() {
        assert_eq!(state(b"a=1,b@c=2 "), Some("a=1,b@c=2 "));
        let long = "x".repeat(LONGEST_STATE + 1);
        for wrong in [&b""[..], b"  ", b"a=\n", "ü=1".as_bytes(), long.as_bytes()] {
            assert_eq!(state(wrong), None);
        }
    }
}
