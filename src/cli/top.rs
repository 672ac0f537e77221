//! `top`: the state of the running daemon on a terminal, again and again until it is told to end.
//!
//! The terminal is given back on every way out: key, signal, failure and panic. Who asks for the daemon has a
//! thread of its own, so that keys are heard while no answer comes.

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
use view::{Order, TopView};

/// A daemon that takes longer is shown as away, and asked again.
const STATE_WITHIN: Duration = Duration::from_secs(5);
/// Longest wait for a key before answers and signals are looked at.
const KEY_WITHIN: Duration = Duration::from_millis(100);

/// Runs the command.
///
/// # Errors
/// Usage: standard output is no terminal. Failed: the terminal cannot be used.
pub(super) fn run(client: Client, args: &TopArgs) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() {
        let text =
            "standard output is no terminal: `tidegate status` prints the same once, for files and pipes";
        return Err(Failure::Usage(text.to_owned()));
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .map_err(|e| Failure::Failed(format!("signals cannot be heard: {e}")))?;
    }
    // One answer waits at most: who shows it sets the pace.
    let (answers, told) = sync_channel(1);
    let interval = args.interval;
    std::thread::Builder::new()
        .name("asker".to_owned())
        .spawn(move || ask(&client, interval, &answers))
        .map_err(|e| Failure::Failed(format!("no thread: {e}")))?;
    let screen = Screen::take()?;
    show(screen, &told, &ended, TopView::new(super::colours()))
}

/// The terminal, until it is dropped. A panic gives it back by a hook, since the process then ends at once.
struct Screen(DefaultTerminal);

impl Screen {
    fn take() -> Result<Self, Failure> {
        ratatui::try_init().map(Screen).map_err(|e| {
            // Half of it may have been done.
            let _ = ratatui::try_restore();
            Failure::Failed(format!("this terminal cannot be used: {e}"))
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Where the terminal is gone, there is nobody to tell.
        let _ = ratatui::try_restore();
    }
}

/// What the daemon said at one look.
struct SeenState {
    document: Box<Document>,
    /// `None` where the metrics cannot be read.
    lateness: Option<LatenessBuckets>,
}

/// The look, or why nothing was to be seen.
type Look = Result<SeenState, String>;

/// Ends with the process, or when nobody listens.
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
    let text = |failure: Failure| failure.text().unwrap_or_default().to_owned();
    let (status, raw) = client.probe(&path(&["state"]), STATE_WITHIN).map_err(text)?;
    if status != 200 {
        return Err(text(client.said(status, &raw)));
    }
    let document = Document::deserialize(&raw).map_err(|_| text(client.not_tidegate()))?;
    let metrics = client.text("/metrics", STATE_WITHIN).ok().filter(|(status, _)| *status == 200);
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
            // Another size too is drawn anew.
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

/// Whether it is to end.
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
