//! The picture of `top`: a head of five lines, the applications, and the keys.

use super::super::output::plain;
use super::super::status::{bytes, ms, span};
use super::view::{ShownApplication, View};
use crate::admin::state::Document;
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use ratatui::Frame;

/// Lines above the table.
const HEAD: u16 = 6;
/// Fewer columns show fewer numbers.
const WIDE: u16 = 80;
const KEYS: &str =
    "q end  p pause  sort: n name  w waiting  r rate  l lateness  k parked  arrows, PgUp, PgDn scroll";

/// Draws all of it, and tells the view how much of the table fits.
pub(super) fn draw(frame: &mut Frame<'_>, view: &mut View) {
    let [head, table, foot] =
        Layout::vertical([Constraint::Length(HEAD), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(header(view)), head);
    view.room = usize::from(table.height.saturating_sub(1)).max(1);
    // Applications may have gone, or the window grown.
    view.top = view.top.min(view.last_top());
    frame.render_widget(applications(view, table.width), table);
    frame.render_widget(Paragraph::new(KEYS).style(Style::new().add_modifier(Modifier::DIM)), foot);
}

fn header(view: &View) -> Text<'static> {
    let mut lines = Vec::new();
    if let Some(why) = &view.away {
        let since = if view.document.is_some() { " (what follows is older)" } else { "" };
        lines.push(marked(view, Color::Red, format!("NO ANSWER{since}: {}", plain(why))));
    }
    match &view.document {
        Some(d) => lines.extend(summary(view, d)),
        None if view.away.is_none() => lines.push(Line::from("asking the daemon")),
        None => {}
    }
    Text::from(lines)
}

fn summary(view: &View, d: &Document) -> Vec<Line<'static>> {
    let paused = if view.paused { "  DISPLAY PAUSED (p)" } else { "" };
    let missing = if d.ready { String::new() } else { format!(" (missing: {})", d.missing.join(", ")) };
    let state = format!("tidegate {}  {}{missing}  up {}{paused}", d.version, d.state, span(d.uptime_ms));
    let colour = if d.state == "running" { Color::Green } else { Color::Yellow };
    let link = |l: &crate::admin::state::LinkState| {
        let detail = if l.detail.is_empty() { String::new() } else { format!(" {}", l.detail) };
        format!("{} {}{detail}", l.side, l.state)
    };
    let links = d.links.iter().map(link).collect::<Vec<_>>().join("  ");
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
        // Nothing has left just now.
        None => format!("lateness since the start p50 {} p99 {}", ms(l.p50_us), ms(l.p99_us)),
    };
    let store = format!("store {} {}, {} free", s.kind, bytes(s.bytes), bytes(s.free_bytes));
    vec![
        marked(view, colour, plain(&state).into_owned()),
        Line::from(plain(&links).into_owned()),
        Line::from(counts),
        Line::from(format!("{rates}  {next}  {lateness}")),
        Line::from(format!("{}  payloads in memory {}", plain(&store), bytes(i.payload_bytes))),
    ]
}

fn marked(view: &View, colour: Color, text: String) -> Line<'static> {
    let style = Style::new().add_modifier(Modifier::BOLD);
    Line::styled(text, if view.colours { style.fg(colour) } else { style })
}

fn applications(view: &View, width: u16) -> Table<'static> {
    let wide = width >= WIDE;
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

fn row(view: &View, a: &ShownApplication, wide: bool) -> Row<'static> {
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
