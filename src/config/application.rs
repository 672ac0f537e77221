//! Settings of an application: the keys of `[defaults]` and of `[applications.NAME]`.

use super::copies::copies;
use super::reading::{DelayFrom, Reading, Redeliver};
use super::section::Section;
use super::terms::BROKER_MAX;
use super::units::{Flag, RateText, Size, Span, Text, Whole, Words};
use std::sync::Arc;
use std::time::Duration;
use tidegate_types::rate::MAX_RATE;
use tidegate_types::{AppSettings, Format, OnFull, Rate, Retry};

/// RabbitMQ 4 refuses larger messages unless configured otherwise (`max_message_size`).
pub(crate) const BROKER_USUAL: u64 = 16 << 20;

/// The settings of one application's table: how the engine treats its items, and how its requests are read.
pub(crate) type ReadSettings = (AppSettings, Reading);

/// Reads `[defaults]` or one `[applications.NAME]` (whose `base` has or has no fault). Returns whether the
/// table has no fault.
pub(crate) fn application(
    mut s: Section<'_, '_>,
    (base, base_reading): (&AppSettings, &Reading),
    base_sound: Option<bool>,
    hold_max: Option<Duration>,
) -> (ReadSettings, bool) {
    let formats = &[
        ("json", Format::Json),
        ("ndjson", Format::Ndjson),
        ("cloudevents", Format::CloudEvents),
        ("passthrough", Format::Passthrough),
    ];
    let policies = &[
        ("pause", OnFull::Pause),
        ("flush-early", OnFull::FlushEarly),
        ("drop-oldest", OnFull::DropOldest),
        ("drop-newest", OnFull::DropNewest),
    ];
    let window = s.get_ms("window", base.window, Span::from_ms(1));
    let quiet = s.get_ms("quiet", base.quiet, Span::from_ms(0));
    let align = s.get("align", base.align, Flag);
    let coalesce = s.get_ms("coalesce", base.coalesce, Span::from_ms(0));
    let max_items = s.get("max_items", base.max_items.into(), Whole(1..=u32::MAX.into())) as u32;
    let max_bytes = s.get("max_bytes", base.max_bytes, Size(1..=BROKER_MAX));
    let format = s.get("format", base.format, Words(formats));
    let copies = copies(&mut s, &base_reading.copies, format, base_sound.is_none());
    let delay_from = s.get("delay_from", base_reading.delay_from, Words(DelayFrom::ALL));
    let traces = s.get("trace_context", base_reading.traces, Flag);
    let dedupe_tail = s.get_ms("dedupe_tail", base.dedupe_tail, Span::from_ms(0));
    let (retry, retry_sound) = retry(s.section("retry"), base.retry, base_sound);
    let longest = hold_max.map_or(u64::MAX, |h| h.as_millis() as u64);
    let redeliver = redeliver(s.section("redeliver"), &base_reading.redeliver, max_bytes, longest);
    let on_full = s.get("on_full", base.on_full, Words(policies));
    let (rate, burst) = rate_of(&mut s, ["rate", "burst"], (base.rate, base.burst));
    let of_customers = (base.customer_rate, base.customer_burst);
    let (customer_rate, customer_burst) = rate_of(&mut s, ["customer_rate", "customer_burst"], of_customers);
    let max_waiting = s.get("max_waiting", base.max_waiting, Whole(0..=1_000_000_000_000));

    let judged = base_sound != Some(false) && !s.failed(&["window", "quiet"]);
    // If neither key is set here, the base was checked there.
    let key = if s.is_set("quiet") { "quiet" } else { "window" };
    if judged && quiet >= window && quiet > 0 && (s.is_set(key) || base_sound.is_none()) {
        let (quiet, window) = (text(quiet), text(window));
        s.fault(key, format!("quiet ({quiet}) must be shorter than window ({window}), or \"0s\" for off"));
    }
    if s.is_set("max_bytes") && max_bytes > BROKER_USUAL {
        s.warn("max_bytes", "is above 16MiB, which RabbitMQ 4 refuses unless its max_message_size is raised");
    }
    if window > longest && (s.is_set("window") || base_sound.is_none()) {
        s.warn("window", "is longer than store.hold_max, beyond which the memory store holds nothing");
    }
    let sound = !s.failed(&["window", "quiet"]) && retry_sound;
    s.end();
    let settings = AppSettings {
        window,
        quiet,
        align,
        coalesce,
        max_items,
        max_bytes,
        format,
        dedupe_tail,
        retry,
        on_full,
        max_waiting,
        rate,
        burst,
        customer_rate,
        customer_burst,
    };
    ((settings, Reading { copies, delay_from, traces, redeliver }), sound)
}

/// The rate at which items leave, and the burst.
fn rate_of(
    s: &mut Section<'_, '_>,
    keys: [&'static str; 2],
    base: (Option<Rate>, u32),
) -> (Option<Rate>, u32) {
    let [rate, burst] = keys;
    (s.get(rate, base.0, RateText), s.get(burst, base.1.into(), Whole(0..=MAX_RATE.into())) as u32)
}

fn retry(mut s: Section<'_, '_>, base: Retry, base_sound: Option<bool>) -> (Retry, bool) {
    let retry = Retry {
        min: s.get_ms("min", base.min, Span::from_ms(1)),
        max: s.get_ms("max", base.max, Span::from_ms(1)),
        attempts: s.get("attempts", base.attempts.into(), Whole(0..=u32::MAX.into())) as u32,
    };
    let judged = base_sound != Some(false) && !s.failed(&["min", "max"]);
    let key = if s.is_set("min") { "min" } else { "max" };
    if judged && retry.min > retry.max && (s.is_set(key) || base_sound.is_none()) {
        let (min, max) = (text(retry.min), text(retry.max));
        s.fault(key, format!("retry.min ({min}) must not be longer than retry.max ({max})"));
    }
    let sound = !s.failed(&["min", "max"]);
    s.end();
    (retry, sound)
}

fn redeliver(mut s: Section<'_, '_>, base: &Redeliver, largest: u64, longest: u64) -> Arc<Redeliver> {
    let mut found = Redeliver {
        min: s.get_ms("min", base.min, Span::from_ms(0)),
        max: s.get_ms("max", base.max, Span::from_ms(1)),
        attempts: s.get("attempts", base.attempts.into(), Whole(0..=u32::MAX.into())) as u32,
        reasons: base.reasons.clone(),
        largest,
    };
    if let Some(names) = s.list("reasons", || Text) {
        found.reasons = names.into_iter().map(|(_, name)| name).collect();
    }
    let key = if s.is_set("min") { "min" } else { "max" };
    if found.min > found.max && !s.failed(&["min", "max"]) && s.is_set(key) {
        let (min, max) = (text(found.min), text(found.max));
        s.fault(key, format!("redeliver.min ({min}) must not be longer than redeliver.max ({max})"));
    }
    if found.min > 0 && found.max > longest && (s.is_set("min") || s.is_set("max")) {
        s.warn(key, "is longer than store.hold_max, beyond which the memory store holds nothing");
    }
    s.end();
    Arc::new(found)
}

/// Milliseconds as a duration text.
fn text(ms: u64) -> String {
    humantime::format_duration(Duration::from_millis(ms)).to_string()
}
