//! `completions` and `man`: made from the definition that parses the command line.

use super::args::{Cli, CompletionsArgs, ManArgs};
use super::output::{Failure, Out};
use clap::CommandFactory;

/// Runs `completions`.
///
/// # Errors
/// Failed if standard output cannot be written.
pub(super) fn completions(args: CompletionsArgs) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tidegate", &mut text);
    Out::lock().text(&text)
}

/// Runs `man`.
///
/// # Errors
/// Failed if standard output or a page cannot be written.
pub(super) fn man(args: &ManArgs) -> Result<(), Failure> {
    let command = Cli::command();
    if let Some(directory) = &args.directory {
        let written = clap_mangen::generate_to(command, directory);
        return written.map_err(|error| Failure::failed(format_args!("{}: {error}", directory.display())));
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text)?;
    Out::lock().text(&text)
}
