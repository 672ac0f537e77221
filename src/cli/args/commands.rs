//! Arguments of the commands that query the running daemon.

use super::{id, name};
use crate::admin::parse::{cursor, moment, stage};
use clap::{Args, Subcommand};
use std::time::Duration;
use tidegate_config::span;
use tidegate_types::{ListedStage, Rate};

/// Most items of one list, which is held in memory for its column widths.
const MAX_LISTED: u64 = 100_000;

/// A position in a list, as [`cursor`] reads it.
fn place(text: &str) -> Result<String, &'static str> {
    cursor(text).map(|_| text.to_owned()).ok_or("it is not a `next` of a list")
}

/// Arguments of `cancel`.
#[derive(Args, Debug)]
pub(crate) struct CancelArgs {
    /// Application of the item
    #[arg(value_parser = name)]
    pub application: String,
    /// Id of the item
    #[arg(value_parser = id, required_unless_present_any = WANTED, conflicts_with_all = WANTED)]
    pub id: Option<String>,
    /// Cancel all items of this customer
    #[arg(long, value_name = "C", value_parser = name)]
    pub customer: Option<String>,
    /// Cancel all items of the application
    #[arg(long, conflicts_with_all = &WANTED[1..])]
    pub all: bool,
    /// Cancel items of customers whose names begin with this text
    #[arg(long, value_name = "P", value_parser = name, conflicts_with = "customer")]
    pub customer_prefix: Option<String>,
    /// Cancel items due at or after this time: RFC 3339 with offset, or UTC milliseconds
    #[arg(long, value_name = "T", value_parser = moment)]
    pub due_after: Option<u64>,
    /// Cancel items due before this time
    #[arg(long, value_name = "T", value_parser = moment)]
    pub due_before: Option<u64>,
    /// Cancel items that arrived before this time
    #[arg(long, value_name = "T", value_parser = moment)]
    pub received_before: Option<u64>,
    /// Cancel nothing; print how many items would be cancelled
    #[arg(long, conflicts_with = "id")]
    pub dry_run: bool,
}

/// Arguments that select the items of `cancel`.
const WANTED: [&str; 6] =
    ["all", "customer", "customer_prefix", "due_after", "due_before", "received_before"];

/// Arguments of `reschedule`.
#[derive(Args, Debug)]
pub(crate) struct RescheduleArgs {
    /// Application of the item
    #[arg(value_parser = name)]
    pub application: String,
    /// Id of the item
    #[arg(value_parser = id)]
    pub id: String,
    /// New time of delivery: RFC 3339 with offset, or UTC milliseconds
    #[arg(long, value_name = "T", value_parser = moment, required_unless_present = "delay")]
    pub at: Option<u64>,
    /// New delay from now, such as 30m
    #[arg(long, value_name = "D", value_parser = span, conflicts_with = "at")]
    pub delay: Option<Duration>,
}

/// Arguments of `pause`.
#[derive(Args, Debug)]
pub(crate) struct PauseArgs {
    /// Name of the application
    #[arg(value_parser = name)]
    pub application: String,
    /// Only this customer of the application
    #[arg(long, value_name = "C", value_parser = name)]
    pub customer: Option<String>,
    #[command(flatten)]
    pub end: EndArgs,
}

/// The end of a pause or of a rate.
#[derive(Args, Debug, Default)]
pub(crate) struct EndArgs {
    /// Duration, such as 10m [default: until another command ends it]
    #[arg(long = "for", value_name = "D", value_parser = span, conflicts_with = "until")]
    pub for_time: Option<Duration>,
    /// End: RFC 3339 with offset, or UTC milliseconds
    #[arg(long, value_name = "T", value_parser = moment)]
    pub until: Option<u64>,
}

/// Arguments of `resume`.
#[derive(Args, Debug)]
pub(crate) struct ResumeArgs {
    /// Name of the application
    #[arg(value_parser = name)]
    pub application: String,
    /// Only this customer of the application
    #[arg(long, value_name = "C", value_parser = name)]
    pub customer: Option<String>,
}

/// Arguments of `rate`.
#[derive(Args, Debug)]
pub(crate) struct RateArgs {
    /// Name of the application
    #[arg(value_parser = name)]
    pub application: String,
    /// Rate at which items leave, such as 10/s, 5/min or 100/h
    #[arg(required_unless_present = "clear", conflicts_with = "clear")]
    pub rate: Option<Rate>,
    #[command(flatten)]
    pub end: EndArgs,
    /// Return to the configured rate
    #[arg(long, conflicts_with_all = ["for_time", "until"])]
    pub clear: bool,
}

/// Arguments of `lookup`.
#[derive(Args, Debug)]
pub(crate) struct LookupArgs {
    /// Application of the item
    #[arg(value_parser = name)]
    pub application: String,
    /// Id of the item
    #[arg(value_parser = id)]
    pub id: String,
}

/// Arguments of `flush`.
#[derive(Args, Debug)]
pub(crate) struct FlushArgs {
    /// Application of the windows
    #[arg(value_parser = name)]
    pub application: String,
    /// Only the window of this customer
    #[arg(long, value_name = "C", value_parser = name)]
    pub customer: Option<String>,
}

/// Arguments of `list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Only items of this application
    #[arg(long, value_name = "A", value_parser = name)]
    pub application: Option<String>,
    /// Only items of this customer
    #[arg(long, value_name = "C", value_parser = name)]
    pub customer: Option<String>,
    /// Only items in this state: waiting, in_flight or parked
    #[arg(long, value_name = "S", value_parser = stage)]
    pub state: Option<ListedStage>,
    /// Only items due at or after this time: RFC 3339 with offset, or UTC milliseconds
    #[arg(long, value_name = "T", value_parser = moment)]
    pub from: Option<u64>,
    /// Only items due before this time
    #[arg(long, value_name = "T", value_parser = moment)]
    pub to: Option<u64>,
    /// Maximum number of items
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(1..=MAX_LISTED)
    )]
    pub limit: u64,
    /// Continue another list: its `next`
    #[arg(long, value_name = "NEXT", value_parser = place)]
    pub cursor: Option<String>,
    /// Print only the number of items, by application or of one customer
    #[arg(long, conflicts_with_all = ["state", "from", "to", "limit", "cursor"])]
    pub count: bool,
}

/// Arguments of `pause`, `resume` and `parked retry`.
#[derive(Args, Debug)]
pub(crate) struct ApplicationArgs {
    /// Name of the application
    #[arg(value_parser = name)]
    pub application: String,
}

/// Subcommands of `parked`.
#[derive(Debug, Subcommand)]
pub(crate) enum ParkedCommand {
    /// List the applications that cannot be delivered to, or the parked items of one
    List(ParkedListArgs),
    /// Retry an application now instead of at its next try
    Retry(ApplicationArgs),
    /// Cancel all parked items of an application for good; they leave no dead letters
    Drop(DropArgs),
}

/// Arguments of `parked list`.
#[derive(Args, Debug)]
pub(crate) struct ParkedListArgs {
    /// Application whose items are listed [default: list the parked applications]
    #[arg(value_parser = name)]
    pub application: Option<String>,
    /// Maximum number of items
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        requires = "application",
        value_parser = clap::value_parser!(u64).range(1..=MAX_LISTED)
    )]
    pub limit: u64,
}

/// Arguments of `parked drop`.
#[derive(Args, Debug)]
pub(crate) struct DropArgs {
    /// Name of the application
    #[arg(value_parser = name)]
    pub application: String,
    /// Confirm; without it the command only prints how many items would be dropped
    #[arg(long)]
    pub yes: bool,
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, CliCommand};
    use super::*;
    use clap::Parser;

    #[test]
    fn a_new_time_is_one_of_two() {
        let CliCommand::Reschedule(args) = parse("tidegate reschedule mail 17 --delay 1h30m") else {
            panic!("no reschedule")
        };
        assert_eq!((args.at, args.delay), (None, Some(Duration::from_secs(5_400))));
        let CliCommand::Reschedule(args) = parse("tidegate reschedule mail 17 --at 2027-01-15T08:00:00Z")
        else {
            panic!("no reschedule")
        };
        assert_eq!((args.at, args.delay), (Some(1_800_000_000_000), None));
        for wrong in [
            "tidegate reschedule mail 17",
            "tidegate reschedule mail --delay 3s",
            "tidegate reschedule mail 17 --delay 3s --at 2030-01-01T00:00:00Z",
        ] {
            assert_eq!(Cli::try_parse_from(wrong.split_whitespace()).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }

    fn parse(line: &str) -> CliCommand {
        Cli::try_parse_from(line.split_whitespace()).unwrap_or_else(|e| panic!("{line}: {e}")).command
    }

    #[test]
    fn a_cancel_names_an_item_or_a_customer() {
        let CliCommand::Cancel(args) = parse("tidegate cancel mail 17") else { panic!("no cancel") };
        assert_eq!((args.application.as_str(), args.id.as_deref()), ("mail", Some("17")));
        assert_eq!(args.customer, None);
        let CliCommand::Cancel(args) = parse("tidegate cancel mail --customer c") else {
            panic!("no cancel")
        };
        assert_eq!((args.id, args.customer.as_deref()), (None, Some("c")));
        let CliCommand::Cancel(args) = parse("tidegate cancel mail -- --customer") else {
            panic!("no cancel")
        };
        assert_eq!(args.id.as_deref(), Some("--customer"));
    }

    #[test]
    fn a_cancel_names_many_items_by_what_they_have_in_common() {
        let CliCommand::Cancel(args) = parse("tidegate cancel mail --all --dry-run") else {
            panic!("no cancel")
        };
        assert_eq!((args.all, args.dry_run, args.id), (true, true, None));
        let line = "tidegate cancel mail --customer-prefix eu- --due-after 1800000000000 \
                    --due-before 2027-01-15T09:00:00+01:00 --received-before 1800000000001";
        let CliCommand::Cancel(args) = parse(line) else { panic!("no cancel") };
        assert_eq!((args.customer_prefix.as_deref(), args.all), (Some("eu-"), false));
        assert_eq!((args.due_after, args.due_before), (Some(1_800_000_000_000), Some(1_800_000_000_000)));
        assert_eq!((args.received_before, args.dry_run), (Some(1_800_000_000_001), false));
    }

    #[test]
    fn a_list_takes_every_filter() {
        let line =
            "tidegate list --application a --customer c --state in_flight --from 2027-01-15T09:00:00+01:00 \
                    --to 1800000001000 --limit 5000";
        let CliCommand::List(args) = parse(line) else { panic!("no list") };
        assert_eq!((args.application.as_deref(), args.customer.as_deref()), (Some("a"), Some("c")));
        assert_eq!(args.state, Some(ListedStage::InFlight));
        assert_eq!((args.from, args.to), (Some(1_800_000_000_000), Some(1_800_000_001_000)));
        assert_eq!((args.limit, args.count), (5_000, false));
        let CliCommand::List(args) = parse("tidegate list --cursor 1800000000000-7-7") else {
            panic!("no list")
        };
        assert_eq!(args.cursor.as_deref(), Some("1800000000000-7-7"));
        let CliCommand::List(args) = parse("tidegate list --count --application a") else {
            panic!("no list")
        };
        assert_eq!((args.limit, args.count), (100, true));
    }

    #[test]
    fn parked_has_commands_of_its_own() {
        let CliCommand::Parked(ParkedCommand::List(args)) = parse("tidegate parked list") else {
            panic!("no list")
        };
        assert_eq!((args.application, args.limit), (None, 100));
        let CliCommand::Parked(ParkedCommand::List(args)) = parse("tidegate parked list sms --limit 5")
        else {
            panic!("no list")
        };
        assert_eq!((args.application.as_deref(), args.limit), (Some("sms"), 5));
        let CliCommand::Parked(ParkedCommand::Drop(args)) = parse("tidegate parked drop sms") else {
            panic!("no drop")
        };
        assert!(!args.yes);
        let line = "tidegate parked drop --yes sms";
        assert!(matches!(parse(line), CliCommand::Parked(ParkedCommand::Drop(DropArgs { yes: true, .. }))));
        assert!(matches!(parse("tidegate parked retry sms"), CliCommand::Parked(ParkedCommand::Retry(_))));
        assert!(matches!(parse("tidegate pause sms"), CliCommand::Pause(_)));
        assert!(matches!(parse("tidegate resume sms"), CliCommand::Resume(_)));
        let CliCommand::Rate(args) = parse("tidegate rate sms 10/s --for 10m") else { panic!("no rate") };
        assert_eq!((args.rate.map(|rate| rate.to_string()).as_deref(), args.clear), (Some("10/s"), false));
        assert!(matches!(parse("tidegate rate sms --clear"), CliCommand::Rate(RateArgs { clear: true, .. })));
    }

    #[test]
    fn what_is_wrong_is_refused_by_usage() {
        let (long_name, long_id) = ("x".repeat(201), "x".repeat(256));
        for line in [
            "tidegate cancel",
            "tidegate cancel mail",
            "tidegate cancel mail 17 --customer c",
            "tidegate cancel mail 17 --all",
            "tidegate cancel mail 17 --dry-run",
            "tidegate cancel mail --dry-run",
            "tidegate cancel mail --all --customer c",
            "tidegate cancel mail --all --due-before 1800000000000",
            "tidegate cancel mail --customer c --customer-prefix c",
            "tidegate cancel mail --due-before soon",
            &format!("tidegate cancel {long_name} 17"),
            &format!("tidegate cancel mail {long_id}"),
            "tidegate lookup mail",
            "tidegate lookup mail 17 18",
            "tidegate flush",
            "tidegate flush --customer c",
            "tidegate list mail",
            "tidegate list --state sent",
            "tidegate list --from tomorrow",
            "tidegate list --from 1800000000",
            "tidegate list --to 2027-01-15",
            "tidegate list --limit 0",
            "tidegate list --limit 100001",
            "tidegate list --count --limit 5",
            "tidegate list --count --cursor 1-1",
            "tidegate list --cursor 7",
            "tidegate list --count --state parked",
            "tidegate list --application --customer c",
            "tidegate pause",
            "tidegate rate sms",
            "tidegate rate sms 10",
            "tidegate rate sms 0/s",
            "tidegate rate sms 10/s --clear",
            "tidegate rate sms --clear --for 10m",
            "tidegate rate sms 10/s --for 10m --until 1800000000000",
            "tidegate parked",
            "tidegate parked list --limit 5",
            "tidegate parked drop --yes",
        ] {
            let error = Cli::try_parse_from(line.split_whitespace()).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
        let empty = Cli::try_parse_from(["tidegate", "cancel", "mail", ""]).unwrap_err();
        assert_eq!(empty.exit_code(), 2, "an empty variable of a script");
    }
}
