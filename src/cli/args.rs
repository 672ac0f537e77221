//! The command line, checked as far as text alone allows.

mod commands;
mod dead;
mod moves;
mod store;

pub(super) use commands::{
    ApplicationArgs, CancelArgs, DropArgs, EndArgs, FlushArgs, ListArgs, LookupArgs, ParkedCommand,
    ParkedListArgs, PauseArgs, RateArgs, RescheduleArgs, ResumeArgs,
};
pub(super) use dead::{
    DeadCommand, LetterArgs, LetterDropArgs, LetterExportArgs, LetterFilterArgs, LetterListArgs,
    LetterRetryArgs, MeantArgs,
};
pub(super) use moves::{MoveArgs, MoveSource};
pub(super) use store::{StoreCommand, StoreDirArgs, StoreExportArgs};

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use tidegate_config::rfc3339::{rfc3339_ms, Rounding};
use tidegate_config::span;
use tidegate_config::terms::{FIRST_PLAUSIBLE_MS, MAX_ID, MAX_NAME};

const EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   failed, with the reason on standard error; store verify: rows are damaged
  2   wrong usage; parked drop, dead retry or dead drop without --yes, tail of a parked application without
      --drain, top without a terminal or in a build without it
  3   not done, or only in part: not ready (status, health); no batch or fewer than requested (tail); the
      target is unknown; an item has been sent, has expired, is dead or is in flight, and cannot be cancelled
      (cancel) or rescheduled (reschedule); not all selected dead letters were handled (dead); an incomplete
      export (store); items stay in the store (move)
  70  a stop did not complete in time and was aborted (run)
  75  the store is locked by another process (run, store, move)
  78  the configuration is invalid, or does not fit the store; an import was interrupted (run)

Configuration: --config, else the file named by TIDEGATE_CONFIG, else /etc/tidegate/config.toml if it
exists, else defaults. TIDEGATE__SECTION__KEY overrides single keys. The commands that ask the running daemon
read only its [admin] section, and no configuration at all with --url or TIDEGATE_URL.

NO_COLOR: if this variable is set and not empty, help and top use no colours.";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, about, after_help = EXIT_CODES, max_term_width = 110)]
pub(super) struct Cli {
    /// Path of the configuration file
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Format of the output
    #[arg(long, global = true, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// How to reach the running daemon.
    #[command(flatten)]
    pub daemon: DaemonArgs,
    /// The subcommand to run.
    #[command(subcommand)]
    pub command: CliCommand,
}

/// Options of the commands that ask the running daemon.
#[derive(Args, Debug, Default)]
pub(super) struct DaemonArgs {
    /// Address of the running daemon, http://HOST:PORT or unix:/PATH [env: TIDEGATE_URL] [default: [admin] of
    /// the configuration]
    #[arg(long, global = true, value_name = "URL")]
    pub url: Option<String>,
    /// File with the running daemon's token [env: TIDEGATE_TOKEN, the token itself] [default:
    /// admin.token_file]
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Values of `--output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Text in columns, for people
    Table,
    /// One JSON document, or one per line (tail), for programs
    Json,
}

/// Subcommands of `tidegate`.
#[derive(Debug, Subcommand)]
pub(super) enum CliCommand {
    /// Run the daemon in the foreground
    Run(RunArgs),
    /// Check the configuration and what it refers to
    Check(CheckArgs),
    /// Publish one request to the ingest exchange, and wait for the broker's confirm
    Push(PushArgs),
    /// Print the batches of one application as they arrive
    ///
    /// The command binds a temporary queue to the output exchange, beside the queues of the application. If
    /// the application has no other queue, its batches go to the temporary queue alone and are lost with it.
    /// So the command asks the daemon first, and refuses an application with parked items unless --drain is
    /// given. If printing is more than 64 MiB behind, the temporary queue drops its oldest batches; with
    /// --drain it refuses new ones, which stay in tidegate.
    Tail(TailArgs),
    /// Cancel an item that has not left, or all items that match
    ///
    /// Items that were sent, have expired, are dead or in flight cannot be cancelled: exit code 3.
    Cancel(CancelArgs),
    /// Show the state of an item
    Lookup(LookupArgs),
    /// Change the time of an item that waits; payload, id and properties stay the same
    ///
    /// A member of a window leaves the window and keeps the new time. Items that were sent, have ended or are
    /// in flight cannot be rescheduled. The new time must be before the item's expiry and within
    /// limits.max_delay. Otherwise: exit code 3.
    Reschedule(RescheduleArgs),
    /// Close the open windows of an application now, or only that of one customer
    Flush(FlushArgs),
    /// List the items that have not ended, by due time
    List(ListArgs),
    /// Pause an application or a customer, for some time or until resume; new items are still accepted
    Pause(PauseArgs),
    /// Resume a paused application or customer
    Resume(ResumeArgs),
    /// Override the configured rate of an application, for some time or until it is cleared
    Rate(RateArgs),
    /// Show, retry or give up the items that cannot be delivered at present
    #[command(subcommand)]
    Parked(ParkedCommand),
    /// Show, send back, drop or save the messages in the dead-letter queue
    #[command(subcommand)]
    Dead(DeadCommand),
    /// Verify, export, import or compact the store on a disk
    #[command(subcommand)]
    Store(StoreCommand),
    /// Publish the items of a store as requests for another daemon, and remove them from the store
    ///
    /// No daemon may have the store open. Each item becomes a request with its application, customer, time,
    /// expiry and id, at the ingest exchange of the configuration; it is removed once the broker has
    /// confirmed it. If the command ends early, run it again: what is published twice is dropped by its id.
    /// Windows end when they were to end. Items that could not become such a request stay: exit code 3.
    Move(MoveArgs),
    /// Show the state of the running daemon
    Status,
    /// Show the state of the running daemon on this terminal, refreshed every second
    ///
    /// Keys: q, Esc or Ctrl-C quit, p freezes the display, n w r l k sort the applications by name, waiting,
    /// rate, lateness or parked; arrows, PgUp, PgDn, Home and End scroll. The packages have this command; a
    /// build of your own has it with the cargo feature `top`.
    Top(TopArgs),
    /// Report the health of the running daemon by exit code, for probes and scripts
    ///
    /// Exit code 0: live and ready. 3: live, but not ready or stuck. 1: not live, or no answer.
    Health(HealthArgs),
    /// Print a sample, the schema or the effective configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print what the broker must provide
    #[command(subcommand)]
    Topology(TopologyCommand),
    /// Lead requests on the broker to the queues of the configured shards, or back to one queue
    #[command(subcommand)]
    Shards(ShardsCommand),
    /// Print the SQL that creates the tables of a store in PostgreSQL, in the configured schema, for a
    /// database in which the daemon may not create them
    Schema,
    /// Print the completion script of a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write a page for each command into a directory
    Man(ManArgs),
}

impl CliCommand {
    /// Whether the command queries the admin port of a running daemon.
    pub(super) fn asks_the_daemon(&self) -> bool {
        match self {
            CliCommand::Store(StoreCommand::Export(StoreExportArgs { running, .. })) => *running,
            CliCommand::Run(_)
            | CliCommand::Check(_)
            | CliCommand::Push(_)
            | CliCommand::Config(_)
            | CliCommand::Topology(_)
            | CliCommand::Shards(_)
            | CliCommand::Schema
            | CliCommand::Store(
                StoreCommand::Verify(_) | StoreCommand::Import(_) | StoreCommand::Compact(_),
            )
            | CliCommand::Move(_)
            | CliCommand::Completions(_)
            | CliCommand::Man(_) => false,
            CliCommand::Tail(_)
            | CliCommand::Cancel(_)
            | CliCommand::Lookup(_)
            | CliCommand::Reschedule(_)
            | CliCommand::Flush(_)
            | CliCommand::List(_)
            | CliCommand::Pause(_)
            | CliCommand::Rate(_)
            | CliCommand::Resume(_)
            | CliCommand::Parked(_)
            | CliCommand::Dead(_)
            | CliCommand::Health(_)
            | CliCommand::Status
            | CliCommand::Top(_) => true,
        }
    }
}

/// Subcommands of `config`.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Print a complete configuration: every key with its default and meaning
    Sample,
    /// Print a JSON Schema of the configuration, for editors
    Schema,
    /// Print the effective configuration: defaults, file and environment, without passwords
    Show,
}

/// Subcommands of `topology`.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(super) enum TopologyCommand {
    /// Print commands that create the configured exchanges, queues and accounts with the least rights
    ///
    /// With --output json: definitions without accounts, for `rabbitmqctl import_definitions`.
    Print,
}

/// Subcommands of `shards`.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(super) enum ShardsCommand {
    /// Create the exchanges, queues and bindings of several shards, and lead requests there without a gap
    ///
    /// The login of [amqp] needs the rights for topology = "declare", whatever the configuration says; with
    /// that value the daemon does the same itself. With shards.count = 1, requests are led back to the
    /// ingest queue alone, and both exchanges are deleted. What is done already is done again, with no
    /// effect.
    Adopt,
}

/// Arguments of `health`.
#[derive(Args, Debug)]
pub(super) struct HealthArgs {
    /// Check only that the daemon is live, not that it is ready
    #[arg(long)]
    pub live: bool,
    /// Time limit for each of the two answers
    #[arg(long, value_name = "SPAN", default_value = "5s", value_parser = span)]
    pub timeout: Duration,
}

/// Arguments of `top`.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct TopArgs {
    /// Time between two refreshes, 100ms to 1h
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
}

/// Arguments of `completions`.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct CompletionsArgs {
    /// Shell to print the script for
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Args, Debug)]
pub(super) struct ManArgs {
    /// Existing directory to write the pages to
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

/// Arguments of `run`.
#[derive(Args, Debug)]
pub(super) struct RunArgs {
    /// Start although the store has lost commits that had been durable
    #[arg(long)]
    pub accept_loss: bool,
    /// Format of the log on standard error: text or json
    #[arg(long, default_value = "text", value_name = "FORMAT")]
    pub log_format: crate::logging::LogFormat,
}

/// Arguments of `check`.
#[derive(Args, Debug, Default)]
pub(super) struct CheckArgs {
    /// Log in to the broker as well, and check rights, queues and exchanges without changing them; likewise
    /// the database of a store in PostgreSQL
    #[arg(long)]
    pub connect: bool,
    /// With --connect: address of RabbitMQ's management API, http://[USER:PASSWORD@]HOST:15672, to check
    /// types, arguments and policies of the queues [default login: that of the broker]
    #[arg(long, value_name = "URL", requires = "connect")]
    pub management: Option<String>,
}

/// Arguments of `push` that describe a single request.
const ONE_REQUEST: [&str; 7] = ["body", "customer", "id", "delay", "deliver_at", "headers", "content_type"];

/// Arguments of `push`.
#[derive(Args, Debug)]
pub(super) struct PushArgs {
    /// Application that receives the payload; the routing key of its batches
    #[arg(value_parser = name, required_unless_present = "ndjson")]
    pub application: Option<String>,
    /// Payload; `-` or nothing reads it from standard input
    pub body: Option<String>,
    /// Read many requests from standard input, one JSON object per line, with the keys of the JSON envelope:
    /// id, customer, delay_ms, payload and so on. Stop at the first faulty line
    #[arg(long, conflicts_with_all = ONE_REQUEST)]
    pub ndjson: bool,
    /// Customer of the item, which is batched with others of the same customer
    #[arg(long, value_name = "C", value_parser = name)]
    pub customer: Option<String>,
    /// Id that identifies repeats [default: a random one]
    #[arg(long, value_name = "I", value_parser = id)]
    pub id: Option<String>,
    /// Delay, such as 30s or 1h 30m
    #[arg(long, value_name = "D", value_parser = span, conflicts_with = "deliver_at")]
    pub delay: Option<Duration>,
    /// Time of delivery: RFC 3339 with offset, or UTC milliseconds
    #[arg(long, value_name = "T", value_parser = moment, allow_hyphen_values = true)]
    pub deliver_at: Option<i64>,
    /// Additional header; may be given more than once
    #[arg(long = "header", value_name = "K=V", value_parser = header)]
    pub headers: Vec<(String, String)>,
    /// Content type [default: application/json if BODY is JSON, else text/plain]
    #[arg(long, value_name = "TYPE", value_parser = id)]
    pub content_type: Option<String>,
}

/// Arguments of `tail`.
#[derive(Args, Debug)]
pub(super) struct TailArgs {
    /// Application whose batches are printed
    #[arg(value_parser = name)]
    pub application: String,
    /// Stop after this many batches; with --drain, after those that are in the temporary queue by then
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Listen even if this delivers parked items, or if the daemon does not answer whether there are any; at
    /// the end print all that the temporary queue has taken. Use it only if the application has no other
    /// queue. What is not printed yet is lost if the command is interrupted or its output is closed
    #[arg(long)]
    pub drain: bool,
    /// Stop after this time, such as 10s or 5m; exit code 3 if nothing arrived
    #[arg(long = "for", value_name = "D", value_parser = span)]
    pub for_time: Option<Duration>,
}

fn name(text: &str) -> Result<String, String> {
    bounded(text, MAX_NAME)
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = span(text)?;
    if (Duration::from_millis(100)..=Duration::from_secs(3_600)).contains(&interval) {
        Ok(interval)
    } else {
        Err("it must be between 100ms and 1h".to_owned())
    }
}

fn id(text: &str) -> Result<String, String> {
    bounded(text, MAX_ID)
}

fn bounded(text: &str, most: usize) -> Result<String, String> {
    match text.len() {
        0 => Err("it must not be empty".to_owned()),
        n if n > most => Err(format!("it has {n} bytes, {most} are allowed")),
        _ => Ok(text.to_owned()),
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("it needs the form KEY=VALUE")?;
    Ok((bounded(key, MAX_ID).map_err(|e| format!("key: {e}"))?, value.to_owned()))
}

/// UTC ms of a number or of an RFC 3339 text; fractions of a ms round up.
fn moment(text: &str) -> Result<i64, String> {
    if let Ok(ms) = text.parse::<i64>() {
        return if u64::try_from(ms).is_ok_and(|ms| ms < FIRST_PLAUSIBLE_MS) {
            Err("that is in 1973 or before: it is read as milliseconds, and looks like seconds".to_owned())
        } else {
            Ok(ms)
        };
    }
    rfc3339_ms(text, Rounding::Up)
        .ok_or_else(|| "it is neither milliseconds nor RFC 3339 such as 2030-01-31T09:00:00+01:00".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::ErrorKind;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, ErrorKind> {
        Cli::try_parse_from(line.split_whitespace()).map_err(|e| e.kind())
    }

    fn push(line: &str) -> PushArgs {
        let CliCommand::Push(args) = parse(line).unwrap().command else { panic!("{line}") };
        args
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_arguments_stand_anywhere() {
        for line in [
            "tidegate --config a.toml --output json status",
            "tidegate status --config a.toml --output json",
            "tidegate --output json status --config a.toml",
            "tidegate push --config a.toml app body --output json",
        ] {
            let cli = parse(line).unwrap();
            assert_eq!(cli.config.as_deref(), Some(std::path::Path::new("a.toml")), "{line}");
            assert_eq!(cli.output, Output::Json, "{line}");
        }
        assert_eq!(parse("tidegate status").unwrap().output, Output::Table);
    }

    #[test]
    fn push_takes_what_the_contract_names() {
        let args = push(
            "tidegate push app --customer c --id i --delay 1h30m --header a=b --header c=d=e - \
             --content-type x/y",
        );
        assert_eq!(args.application.as_deref(), Some("app"));
        assert_eq!((args.customer.as_deref(), args.id.as_deref()), (Some("c"), Some("i")));
        assert_eq!(args.delay, Some(Duration::from_secs(5_400)));
        assert_eq!(args.headers, [("a".into(), "b".into()), ("c".into(), "d=e".into())]);
        assert_eq!(args.body.as_deref(), Some("-"));
        assert_eq!(args.content_type.as_deref(), Some("x/y"));
        assert_eq!(push("tidegate push app").body, None);
    }

    #[test]
    fn what_is_wrong_is_refused_by_usage() {
        let long = "x".repeat(201);
        for line in [
            "tidegate",
            "tidegate nothing",
            "tidegate push",
            "tidegate push app --delay",
            "tidegate push app --delay 3",
            "tidegate push app --delay 3s --deliver-at 2030-01-01T00:00:00Z",
            "tidegate push app --header novalue",
            "tidegate push app --header =v",
            "tidegate push app one two",
            &format!("tidegate push {long}"),
            &format!("tidegate push app --customer {long}"),
            "tidegate tail app --count 0",
            "tidegate top --interval 1ms",
            "tidegate check --management http://127.0.0.1:15672",
            "tidegate status --output yaml",
        ] {
            let error = Cli::try_parse_from(line.split_whitespace()).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    /// Excluded: a duration that ends the program by a panic, or has no bound, in any argument.
    #[test]
    fn durations_have_the_bound_of_the_configuration() {
        let huge = "18446744073709551615s1000ms";
        for line in [
            "push app x --delay",
            "tail app --for",
            "health --timeout",
            "top --interval",
            "reschedule app id --delay",
            "pause app --for",
            "rate app 10/s --for",
            "dead retry --all --delay",
        ] {
            for wrong in [huge, "9999999999s9999999999y", "3", "36501d"] {
                let line = ["tidegate", line, wrong].join(" ");
                let error = Cli::try_parse_from(line.split_whitespace()).unwrap_err();
                assert_eq!((error.kind(), error.exit_code()), (ErrorKind::ValueValidation, 2), "{line}");
            }
        }
        assert_eq!(push("tidegate push app --delay 36500d").delay, Some(Duration::from_secs(3_153_600_000)));
    }

    #[test]
    fn moments() {
        assert_eq!(moment("1800000000000"), Ok(1_800_000_000_000));
        assert_eq!(moment("-5"), Ok(-5));
        assert_eq!(moment("2027-01-15T08:00:00Z"), Ok(1_800_000_000_000));
        assert_eq!(moment("2027-01-15T09:00:00.0001+01:00"), Ok(1_800_000_000_001));
        for wrong in
            ["1800000000", "0", "99999999999", "", "tomorrow", "2027-01-15", "2027-01-15T08:00:00", "1e12"]
        {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
        assert_eq!(push("tidegate push app --deliver-at -5").deliver_at, Some(-5));
    }

    #[test]
    fn the_sample_is_a_subcommand_and_config_an_argument() {
        let cli = parse("tidegate config sample --config a.toml").unwrap();
        assert!(matches!(cli.command, CliCommand::Config(ConfigCommand::Sample)));
        assert_eq!(cli.config.as_deref(), Some(std::path::Path::new("a.toml")));
    }

    #[test]
    fn shards_are_adopted_without_the_daemon() {
        let cli = parse("tidegate shards adopt --output json --config a.toml").unwrap();
        assert!(matches!(cli.command, CliCommand::Shards(ShardsCommand::Adopt)));
        assert!(!cli.command.asks_the_daemon());
        for (line, kind) in [
            ("tidegate shards", ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand),
            ("tidegate shards adopt 4", ErrorKind::UnknownArgument),
        ] {
            assert_eq!(parse(line).unwrap_err(), kind, "{line}");
        }
    }

    #[test]
    fn help_names_the_exit_codes() {
        let help = Cli::command().render_long_help().to_string();
        for code in ["0 ", "1 ", "2 ", "3 ", "75 ", "78 "] {
            assert!(help.contains(&format!("\n  {code}")), "{code} in {help}");
        }
        assert_eq!(parse("tidegate --help").unwrap_err(), ErrorKind::DisplayHelp);
    }
}
