//! Arguments of `dead`.

use super::name;
use crate::admin::parse::{expiry, moment};
use clap::{Args, Subcommand};
use std::time::Duration;
use tidegate_config::span;
use tidegate_wire::dead_letters::{LetterKey, MOST_LOOKED_AT, MOST_OF_A_WALK};

/// The key of a dead letter, as shown by list.
fn key(text: &str) -> Result<String, &'static str> {
    LetterKey::parse(text)
        .map(|_| text.to_owned())
        .ok_or("it is not a key: 32 hexadecimal digits, as shown by list")
}

/// Subcommands of `dead`.
#[derive(Debug, Subcommand)]
pub(crate) enum DeadCommand {
    /// List dead letters in queue order, or count them by reason and application
    List(LetterListArgs),
    /// Show one dead letter with headers, properties and body
    Show(LetterArgs),
    /// Send dead letters back as requests, immediately or at a new time
    ///
    /// The command removes what tidegate and RabbitMQ added, an old time, and an expiry that cannot be met. A
    /// dead letter leaves its queue once its request is confirmed in the ingest queue.
    Retry(LetterRetryArgs),
    /// Delete dead letters
    Drop(LetterDropArgs),
    /// Print complete dead letters, one JSON document per line
    Export(LetterExportArgs),
}

/// Which dead letters are shown.
#[derive(Args, Debug, Default)]
pub(crate) struct LetterFilterArgs {
    /// Only dead letters with this reason: invalid, expired, attempts, ..., broker:expired, ...
    #[arg(long, value_name = "R", value_parser = name)]
    pub reason: Option<String>,
    /// Only dead letters of this application
    #[arg(long, value_name = "A", value_parser = name, allow_hyphen_values = true)]
    pub application: Option<String>,
    /// Only dead letters whose application could not be read
    #[arg(long, conflicts_with = "application")]
    pub unreadable: bool,
}

/// Arguments of `dead list`.
#[derive(Args, Debug)]
pub(crate) struct LetterListArgs {
    /// Selection of dead letters.
    #[command(flatten)]
    pub filter: LetterFilterArgs,
    /// Maximum number of dead letters
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(1..=MOST_LOOKED_AT as u64)
    )]
    pub limit: u64,
    /// Print only the numbers, by reason and application
    #[arg(long, conflicts_with = "limit")]
    pub count: bool,
}

/// Arguments of `dead show`.
#[derive(Args, Debug)]
pub(crate) struct LetterArgs {
    /// Key of the dead letter, as shown by list
    #[arg(value_parser = key)]
    pub key: String,
}

/// Which dead letters a change selects.
#[derive(Args, Debug)]
pub(crate) struct MeantArgs {
    /// Key of one dead letter, as shown by list
    #[arg(
        value_parser = key,
        required_unless_present_any = ["reason", "application", "unreadable", "all"],
        conflicts_with_all = ["reason", "application", "unreadable", "all"]
    )]
    pub key: Option<String>,
    /// Selection of dead letters.
    #[command(flatten)]
    pub filter: LetterFilterArgs,
    /// All dead letters
    #[arg(long, conflicts_with_all = ["reason", "application", "unreadable"])]
    pub all: bool,
    /// Maximum number of dead letters [default: all that match and were there at the start]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_OF_A_WALK as u64))]
    pub limit: Option<u64>,
    /// Confirm; without it the command only prints how many dead letters match
    #[arg(long)]
    pub yes: bool,
}

/// Arguments of `dead retry`.
#[derive(Args, Debug)]
pub(crate) struct LetterRetryArgs {
    /// The dead letters to send back.
    #[command(flatten)]
    pub meant: MeantArgs,
    /// New time of delivery: RFC 3339 with offset, or UTC milliseconds [default: immediately]
    #[arg(long, value_name = "T", value_parser = moment, conflicts_with = "delay")]
    pub at: Option<u64>,
    /// New delay from now, such as 30m
    #[arg(long, value_name = "D", value_parser = span)]
    pub delay: Option<Duration>,
    /// New expiry that replaces the old one: RFC 3339 with offset, or UTC milliseconds
    #[arg(long, value_name = "T", value_parser = expiry)]
    pub deliver_before: Option<u64>,
}

/// Arguments of `dead drop`.
#[derive(Args, Debug)]
pub(crate) struct LetterDropArgs {
    /// The dead letters to drop.
    #[command(flatten)]
    pub meant: MeantArgs,
}

/// Arguments of `dead export`.
#[derive(Args, Debug)]
pub(crate) struct LetterExportArgs {
    /// Selection of dead letters.
    #[command(flatten)]
    pub filter: LetterFilterArgs,
    /// Maximum number of dead letters [default: all that match and were there at the start]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_OF_A_WALK as u64))]
    pub limit: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, CliCommand};
    use super::*;
    use clap::Parser;

    fn parse(line: &str) -> Result<DeadCommand, i32> {
        let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.exit_code())?;
        let CliCommand::Dead(command) = cli.command else { panic!("{line}") };
        Ok(command)
    }

    #[test]
    fn what_changes_something_says_what_it_means() {
        let key = "0123456789abcdef0123456789abcdef";
        let Ok(DeadCommand::Retry(args)) = parse(&format!("tidegate dead retry {key} --delay 5m --yes"))
        else {
            panic!("no retry")
        };
        assert_eq!((args.meant.key.as_deref(), args.meant.yes), (Some(key), true));
        assert_eq!(args.delay, Some(Duration::from_secs(300)));
        let Ok(DeadCommand::Drop(args)) = parse("tidegate dead drop --reason expired --application -") else {
            panic!("no drop")
        };
        assert_eq!(args.meant.filter.application.as_deref(), Some("-"));
        assert!(!args.meant.yes && !args.meant.all && !args.meant.filter.unreadable);
        assert_eq!(args.meant.limit, None);
        for wrong in [
            "tidegate dead drop",
            "tidegate dead drop --yes",
            "tidegate dead retry 12",
            "tidegate dead drop --all --reason expired",
            &format!("tidegate dead drop {key} --all"),
            &format!("tidegate dead drop {key} --reason expired"),
            "tidegate dead retry --all --at 2030-01-01T00:00:00Z --delay 3s",
            "tidegate dead retry --all --limit 0",
            "tidegate dead drop --all --unreadable",
            "tidegate dead drop --application a --unreadable",
            "tidegate dead list --count --limit 3",
            "tidegate dead show",
        ] {
            assert_eq!(parse(wrong).err(), Some(2), "{wrong}");
        }
    }
}
