//! The screen of `top`: a head, the applications, and the keys.

use super::super::output::plain;
use super::super::status::{bytes, ms, span};
use super::view::{ShownApplication, TopView};
use crate::admin::state::{unready, Document};
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use ratatui::Frame;

/// With fewer columns, an application has fewer numbers, and the head has more lines.
const WIDE: u16 = 80;
const KEYS: &str =
    "q end  p pause  sort: n name  w waiting  r rate  l lateness  k parked  arrows, PgUp, PgDn scroll";
const KEYS_NARROW: &str = "q end  p pause  sort n w r l k  arrows PgUp PgDn";

/// Draws the screen, and stores in the view how many lines of the table fit.
pub(super) fn draw(frame: &mut Frame<'_>, view: &mut TopView) {
    let wide = frame.area().width >= WIDE;
    let text = header(view, wide);
    // One empty line follows.
    let lines = u16::try_from(text.lines.len()).unwrap_or(u16::MAX).saturating_add(1);
    let parts = [Constraint::Length(lines), Constraint::Min(0), Constraint::Length(1)];
    let [head, table, foot] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Paragraph::new(text), head);
    view.room = usize::from(table.height.saturating_sub(1)).max(1);
    // Applications may have disappeared, or the window may have grown.
    view.top = view.top.min(view.last_top());
    frame.render_widget(applications(view, wide), table);
    frame.render_widget(
        Paragraph::new(if wide { KEYS } else { KEYS_NARROW }).style(Style::new().add_modifier(Modifier::DIM)),
        foot,
    );
}

fn header(view: &TopView, wide: bool) -> Text<'static> {
    let mut lines = Vec::new();
    if let Some(why) = &view.away {
        let since = if view.document.is_some() { " (the values below are older)" } else { "" };
        lines.push(marked(view, Color::Red, format!("NO ANSWER{since}: {}", plain(why))));
    }
    match &view.document {
        Some(d) => lines.extend(summary(view, d, wide)),
        None if view.away.is_none() => lines.push(Line::from("waiting for the daemon")),
        None => {}
    }
    Text::from(lines)
}

fn summary(view: &TopView, d: &Document, wide: bool) -> Vec<Line<'static>> {
    let paused = if view.paused { "  DISPLAY PAUSED (p)" } else { "" };
    let missing = if d.ready { String::new() } else { format!(" ({})", unready(&d.missing, &d.stuck)) };
    let state = format!("tidegate {}  {}{missing}  up {}{paused}", d.version, d.state, span(d.uptime_ms));
    let colour = if d.state == "running" { Color::Green } else { Color::Yellow };
    let groups = d.link_groups().into_iter();
    let links: Vec<String> =
        groups.map(|links| format!("{} {}", links.first.side, links.text(" "))).collect();
    let (i, t, l, s) = (&d.snapshot.items, &d.snapshot.totals, &d.lateness, &d.store);
    let counts = format!(
        "{} waiting  {} due  {} in flight  {} parked  {} dead",
        i.waiting,
        i.due,
        i.in_flight,
        i.parked,
        t.dead.iter().sum::<u64>()
    );
    let rates = match view.rates {
        Some((taken, left)) => format!("in {taken:.1}/s  out {left:.1}/s"),
        None => "in -  out -".to_owned(),
    };
    let next = match i.next_due_at {
        Some(due) if due >= d.at => format!("next due in {}", span(due - d.at)),
        Some(due) => format!("next was due {} ago", span(d.at - due)),
        None => "nothing is due".to_owned(),
    };
    let within = |us: Option<u64>| us.map_or_else(|| "?".to_owned(), |us| format!("<={}", ms(us)));
    let lateness = match view.lateness {
        Some(now) => format!("lateness now p50 {} p99 {}", within(now.p50_us), within(now.p99_us)),
        // No item has left in this round.
        None => format!("lateness since the start p50 {} p99 {}", ms(l.p50_us), ms(l.p99_us)),
    };
    let free = s.free_bytes.map_or(String::new(), |free| format!(", {} free", bytes(free)));
    let store = format!("store {} {}{free}", s.kind, bytes(s.bytes));
    let memory = format!("payloads in memory {}", bytes(i.payload_bytes));
    let mut lines = vec![marked(view, colour, plain(&state).into_owned())];
    if !d.missing_shards.is_empty() {
        let missing: Vec<String> = d.missing_shards.iter().map(u16::to_string).collect();
        let text = format!("missing shard {}: nobody tells of its items", missing.join(", "));
        lines.push(marked(view, Color::Red, text));
    }
    for parts in [links, vec![counts], vec![rates, next, lateness], vec![store, memory]] {
        let parts = if wide { vec![parts.join("  ")] } else { parts };
        lines.extend(parts.iter().map(|part| Line::from(plain(part).into_owned())));
    }
    lines
}

fn marked(view: &TopView, colour: Color, text: String) -> Line<'static> {
    let style = Style::new().add_modifier(Modifier::BOLD);
    Line::styled(text, if view.colours { style.fg(colour) } else { style })
}

fn applications(view: &TopView, wide: bool) -> Table<'static> {
    let shown = view.applications.iter().skip(view.top).take(view.room);
    let rows = shown.map(|a| row(view, a, wide));
    let cut = view.document.as_ref().is_some_and(|d| d.applications_truncated);
    let more = if cut { ", not all" } else { "" };
    let name = format!("APPLICATION ({}{more}, by {})", view.applications.len(), view.order.as_str());
    let mut titles = vec![Cell::from(name)];
    let mut widths = vec![Constraint::Fill(1)];
    if wide {
        titles.push(Cell::from("STATE"));
        widths.push(Constraint::Length(16));
    }
    let numbers: &[&'static str] = if wide {
        &["WAITING", "IN FLIGHT", "PARKED", "OUT/S", "LATE"]
    } else {
        &["WAITING", "PARKED", "OUT/S"]
    };
    for title in numbers {
        titles.push(right((*title).to_owned()));
        widths.push(Constraint::Length(9));
    }
    Table::new(rows, widths)
        .column_spacing(1)
        .header(Row::new(titles).style(Style::new().add_modifier(Modifier::REVERSED)))
}

fn row(view: &TopView, a: &ShownApplication, wide: bool) -> Row<'static> {
    let rate = a.rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
    let mut cells = vec![Cell::from(plain(&a.name).into_owned())];
    if wide {
        cells.push(Cell::from(if a.paused { format!("{}, paused", a.state) } else { a.state.to_owned() }));
        let late = if a.late_ms == 0 { "-".to_owned() } else { span(a.late_ms) };
        let numbers = [a.waiting.to_string(), a.in_flight.to_string(), a.parked.to_string(), rate, late];
        cells.extend(numbers.map(right));
    } else {
        cells.extend([a.waiting.to_string(), a.parked.to_string(), rate].map(right));
    }
    let parked = view.colours && a.state == "parked";
    Row::new(cells).style(if parked { Style::new().fg(Color::Yellow) } else { Style::new() })
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).alignment(Alignment::Right))
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
