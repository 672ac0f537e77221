//! `top`: shows the state of the running daemon on a terminal, refreshed until the user ends it. Only builds
//! with the cargo feature `top` have it.
//!
//! The terminal is restored at every exit: key, signal, failure and panic. A separate thread queries the
//! daemon, so that keys work while an answer is pending.

mod draw;
mod lateness;
mod view;

use super::args::TopArgs;
use super::client::{path, Client};
use super::output::Failure;
use crate::admin::state::Document;
use lateness::LatenessBuckets;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::DefaultTerminal;
use serde::Deserialize as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::Arc;
use std::time::{Duration, Instant};
use ureq::http::Method;
use view::{Order, TopView};

/// Time limit of a query; a slower daemon is shown as not answering, and queried again.
const STATE_WITHIN: Duration = Duration::from_secs(5);
/// Longest wait for a key before answers and signals are checked.
const KEY_WITHIN: Duration = Duration::from_millis(100);

/// Runs the command.
///
/// # Errors
/// Usage: standard output is not a terminal. Failed: the terminal cannot be used.
pub(super) fn run(client: Client, args: &TopArgs) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() {
        let text =
            "standard output is not a terminal: `tidegate status` prints the same once, for files and pipes";
        return Err(Failure::Usage(text.to_owned()));
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .map_err(|e| Failure::Failed(format!("signal handlers cannot be installed: {e}")))?;
    }
    // At most one answer waits: the display sets the pace.
    let (answers, told) = sync_channel(1);
    let interval = args.interval;
    std::thread::Builder::new()
        .name("asker".to_owned())
        .spawn(move || ask(&client, interval, &answers))
        .map_err(|e| Failure::Failed(format!("no thread: {e}")))?;
    let screen = Screen::take()?;
    show(screen, &told, &ended, TopView::new(colours()))
}

/// Whether to use colour; the variable `NO_COLOR` (<https://no-color.org>) turns it off. clap checks the same
/// for its help.
fn colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The terminal, until it is dropped. For a panic a hook restores it, since the process then ends at once.
struct Screen(DefaultTerminal);

impl Screen {
    fn take() -> Result<Self, Failure> {
        ratatui::try_init().map(Screen).map_err(|e| {
            // The set-up may be half done.
            let _ = ratatui::try_restore();
            Failure::Failed(format!("this terminal cannot be used: {e}"))
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, the error cannot be shown.
        let _ = ratatui::try_restore();
    }
}

/// The daemon's answers to one round of queries.
struct SeenState {
    document: Box<Document>,
    /// `None` if the metrics cannot be read.
    lateness: Option<LatenessBuckets>,
}

/// The answers of a round, or why there are none.
type Look = Result<SeenState, String>;

/// Runs until the process ends or the receiver is dropped.
fn ask(client: &Client, interval: Duration, answers: &SyncSender<Look>) {
    loop {
        let begun = Instant::now();
        if answers.send(answer(client)).is_err() {
            return;
        }
        std::thread::sleep(interval.saturating_sub(begun.elapsed()));
    }
}

fn answer(client: &Client) -> Look {
    let text = |failure: Failure| failure.text().to_owned();
    let (status, raw) = client.probe(&path(&["state"]), STATE_WITHIN).map_err(text)?;
    if status != 200 {
        return Err(text(client.said(status, &raw)));
    }
    let document = Document::deserialize(&raw).map_err(|_| text(client.not_tidegate()))?;
    let metrics =
        client.send(Method::GET, "/metrics", STATE_WITHIN).ok().filter(|(status, _)| *status == 200);
    let lateness = metrics.and_then(|(_, text)| LatenessBuckets::read(&text));
    Ok(SeenState { document: Box::new(document), lateness })
}

fn show(
    mut screen: Screen,
    told: &Receiver<Look>,
    ended: &AtomicBool,
    mut view: TopView,
) -> Result<(), Failure> {
    let unusable = |e: std::io::Error| Failure::Failed(format!("the terminal: {e}"));
    let mut changed = true;
    while !ended.load(Ordering::Relaxed) {
        if let Ok(answer) = told.try_recv() {
            view.hear(answer);
            changed = true;
        }
        if std::mem::take(&mut changed) {
            screen.0.draw(|frame| draw::draw(frame, &mut view)).map_err(unusable)?;
        }
        if event::poll(KEY_WITHIN).map_err(unusable)? {
            // A change of the size also needs a redraw.
            changed = true;
            if let Event::Key(key) = event::read().map_err(unusable)? {
                if press(&mut view, key) {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Handles a key; returns whether to quit.
#[expect(clippy::wildcard_enum_match_arm, reason = "a key without a meaning has none")]
fn press(view: &mut TopView, key: KeyEvent) -> bool {
    if key.kind == KeyEventKind::Release {
        return false;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
        KeyCode::Char('q') | KeyCode::Esc => return true,
        KeyCode::Char('p') => view.pause(),
        KeyCode::Char('n') => view.sort(Order::Name),
        KeyCode::Char('w') => view.sort(Order::Waiting),
        KeyCode::Char('r') => view.sort(Order::Rate),
        KeyCode::Char('l') => view.sort(Order::Late),
        KeyCode::Char('k') => view.sort(Order::Parked),
        KeyCode::Up => view.scroll(-1),
        KeyCode::Down => view.scroll(1),
        KeyCode::PageUp => view.page(-1),
        KeyCode::PageDown => view.page(1),
        KeyCode::Home => view.scroll(isize::MIN),
        KeyCode::End => view.scroll(isize::MAX),
        _ => {}
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_keys_end_it_and_no_other() {
        let mut view = TopView::new(false);
        let mut ends = |code, modifiers| press(&mut view, KeyEvent::new(code, modifiers));
        assert!(ends(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(ends(KeyCode::Esc, KeyModifiers::NONE));
        assert!(ends(KeyCode::Char('c'), KeyModifiers::CONTROL));
        for other in ['c', 'p', 'n', 'w', 'r', 'l', 'k', 'x'] {
            assert!(!ends(KeyCode::Char(other), KeyModifiers::NONE), "{other}");
        }
    }
}
