//! The command line: selects the command and its configuration, and returns the exit code.
//!
//! Commands print through [`output`] only, and query the running daemon through `client` only.

mod advice;
mod args;
mod broker;
mod check;
mod client;
mod commands;
mod dead;
mod health;
mod list;
mod management;
mod many;
mod moves;
mod output;
mod paper;
mod progress;
mod push;
mod shards;
mod status;
mod store;
mod tail;
#[cfg(feature = "top")]
mod top;
mod topology;
mod unix;

use crate::daemon;
use args::{
    Cli, CliCommand, ConfigCommand, DaemonArgs, ParkedCommand, RunArgs, ShardsCommand, TopologyCommand,
};
use clap::Parser;
use client::Client;
use output::{note, plain, Failure, Out};
use secrecy::SecretString;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tidegate_config::{environment, Config, LoadedConfig};

/// The file read if neither argument nor environment names one and it exists.
const DEFAULT_CONFIG: &str = "/etc/tidegate/config.toml";
/// Names the file if the argument does not.
const CONFIG_VARIABLE: &str = "TIDEGATE_CONFIG";
/// Contains the daemon's address if `--url` does not.
const URL_VARIABLE: &str = "TIDEGATE_URL";
/// Contains the daemon's token if `--token-file` names no file.
const TOKEN_VARIABLE: &str = "TIDEGATE_TOKEN";
/// The answer of `top` in a build without it.
#[cfg(not(feature = "top"))]
const NO_TOP: &str = "this build has no `top`: the packages have it, and so has a build by `cargo build \
                      --release --features top`; `tidegate status` prints the same once";

/// Runs the command of this process. The variable `RUST_MIN_STACK` is already set.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Usage goes to standard error, help and version to standard output, which may be closed.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let default = Path::new(DEFAULT_CONFIG);
    let path = config_path(cli.config.clone(), std::env::var_os(CONFIG_VARIABLE), default, default.exists());
    match dispatch(cli, path) {
        Ok(code) => code,
        Err(failure) => {
            // Line by line, because a fault may quote a foreign text.
            failure.text().lines().for_each(|line| note(plain(line)));
            ExitCode::from(failure.exit_code())
        }
    }
}

fn dispatch(cli: Cli, path: Option<PathBuf>) -> Result<ExitCode, Failure> {
    let output = cli.output;
    if !cli.command.asks_the_daemon() && (cli.daemon.url.is_some() || cli.daemon.token_file.is_some()) {
        let text = "--url and --token-file are for the commands that ask the running daemon";
        return Err(Failure::Usage(text.to_owned()));
    }
    let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let (url, token) = (variable(URL_VARIABLE), variable(TOKEN_VARIABLE));
    let daemon = || client_of(&cli.daemon, url, token, path.as_deref());
    match cli.command {
        CliCommand::Run(args) => return run(args, path),
        CliCommand::Check(args) => check::run(path.as_deref(), load(path.as_deref()), &args, output)?,
        CliCommand::Push(args) if args.ndjson => many::run(&quietly(path.as_deref())?, &args, output)?,
        CliCommand::Push(args) => push::run(&quietly(path.as_deref())?, args, output)?,
        CliCommand::Tail(args) => tail::run(&quietly(path.as_deref())?, daemon, &args, output)?,
        // These are texts of files, whatever the output format.
        CliCommand::Config(ConfigCommand::Sample) => Out::lock().line(tidegate_config::SAMPLE.trim_end())?,
        CliCommand::Config(ConfigCommand::Schema) => Out::lock().json(&tidegate_config::schema())?,
        CliCommand::Config(ConfigCommand::Show) => Out::lock().line(shown(path.as_deref())?.trim_end())?,
        CliCommand::Completions(args) => paper::completions(args)?,
        CliCommand::Man(args) => paper::man(&args)?,
        CliCommand::Topology(TopologyCommand::Print) => topology::print(&quietly(path.as_deref())?, output)?,
        CliCommand::Shards(ShardsCommand::Adopt) => shards::adopt(&quietly(path.as_deref())?, output)?,
        CliCommand::Schema => Out::lock().line(database_schema(&quietly(path.as_deref())?).trim_end())?,
        CliCommand::Health(args) => health::run(&daemon()?, &args, output)?,
        CliCommand::Store(command) => {
            store::run(&command, || quietly(path.as_deref()), daemon, output)?;
        }
        CliCommand::Move(args) => moves::run(&quietly(path.as_deref())?, &args, output)?,
        CliCommand::Status => status::run(&daemon()?, output)?,
        #[cfg(feature = "top")]
        CliCommand::Top(args) => top::run(daemon()?, &args)?,
        #[cfg(not(feature = "top"))]
        CliCommand::Top(_) => return Err(Failure::Usage(NO_TOP.to_owned())),
        CliCommand::Cancel(args) => commands::cancel(&daemon()?, &args, output)?,
        CliCommand::Lookup(args) => commands::lookup(&daemon()?, &args, output)?,
        CliCommand::Reschedule(args) => commands::reschedule(&daemon()?, &args, output)?,
        CliCommand::Flush(args) => commands::flush(&daemon()?, &args, output)?,
        CliCommand::List(args) => list::run(&daemon()?, &args, output)?,
        CliCommand::Pause(args) => commands::pause(&daemon()?, &args, output)?,
        CliCommand::Rate(args) => commands::rate(&daemon()?, &args, output)?,
        CliCommand::Resume(args) => commands::resume(&daemon()?, &args, output)?,
        CliCommand::Parked(ParkedCommand::List(args)) => list::parked(&daemon()?, &args, output)?,
        CliCommand::Parked(ParkedCommand::Retry(args)) => commands::retry(&daemon()?, &args, output)?,
        CliCommand::Parked(ParkedCommand::Drop(args)) => commands::drop_parked(&daemon()?, &args, output)?,
        CliCommand::Dead(command) => dead::run(&daemon()?, &command, output)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Uses the schema of the configured database, or the usual one, and the configured number of shards.
fn database_schema(config: &Config) -> String {
    let name = config.store.database.as_ref().map_or(tidegate_config::USUAL_SCHEMA, |db| &db.schema);
    tidegate_store::database_schema(name, config.shards.count)
}

fn run(args: RunArgs, config_path: Option<PathBuf>) -> Result<ExitCode, Failure> {
    let loaded = load(config_path.as_deref()).map_err(Failure::Config)?;
    for warning in &loaded.warnings {
        note(format_args!("warning: {}", plain(&warning.to_string())));
    }
    let options = daemon::RunOptions {
        config: loaded.config,
        config_path,
        accept_loss: args.accept_loss,
        log_format: args.log_format,
    };
    Ok(daemon::run(options))
}

/// For commands beside the daemon, which has already logged the warnings.
fn quietly(path: Option<&Path>) -> Result<Config, Failure> {
    load(path).map(|loaded| loaded.config).map_err(Failure::Config)
}

/// The effective configuration as text.
fn shown(path: Option<&Path>) -> Result<String, Failure> {
    let env: Vec<_> = environment().collect();
    Config::show(path, env.into_iter()).map_err(|faults| Failure::Config(faults.to_string()))
}

/// Loads the configuration, or returns its faults, one per line.
fn load(path: Option<&Path>) -> Result<LoadedConfig, String> {
    Config::load(path, environment()).map_err(|faults| faults.to_string())
}

/// A client for the running daemon: at the given URL, or else at the address of `[admin]`. With a URL, no
/// configuration is read, so that its token never reaches another address. Arguments take precedence over the
/// environment.
fn client_of(
    arguments: &DaemonArgs,
    url: Option<String>,
    token: Option<String>,
    config: Option<&Path>,
) -> Result<Client, Failure> {
    let token_from = match (&arguments.token_file, &token) {
        (Some(_), _) => "the token of --token-file",
        (None, Some(_)) => "the token in TIDEGATE_TOKEN",
        (None, None) => "the token of [admin] of this configuration",
    };
    let token = match &arguments.token_file {
        Some(path) => Some(
            tidegate_config::read_secret(path).map_err(|e| Failure::Usage(format!("--token-file: {e}")))?,
        ),
        None => token.map(SecretString::from),
    };
    if let Some(url) = arguments.url.clone().or(url) {
        return Ok(Client::at(&url, token.as_ref())?.token_from(token_from));
    }
    let admin = Config::load_admin(config, environment(), token.is_none());
    let admin = admin.map_err(|faults| Failure::Config(faults.to_string()))?;
    let admin = tidegate_config::Admin { token: token.or(admin.token), ..admin };
    Ok(Client::new(&admin)?.token_from(token_from))
}

/// Argument, environment, the usual file, none. An empty variable counts as absent.
fn config_path(
    argument: Option<PathBuf>,
    variable: Option<OsString>,
    default: &Path,
    default_exists: bool,
) -> Option<PathBuf> {
    argument
        .or_else(|| variable.filter(|v| !v.is_empty()).map(PathBuf::from))
        .or_else(|| default_exists.then(|| default.to_path_buf()))
}

/// UTC milliseconds as RFC 3339 in UTC; the number itself outside of the calendar's range.
fn moment(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |at| at.to_string())
}

/// Whole ms of a delay; fractions round up, as the daemon does.
fn millis(delay: Duration) -> i64 {
    i64::try_from(delay.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_looked_for_in_this_order() {
        let usual = Path::new("/etc/usual.toml");
        let find = |argument: Option<&str>, variable: Option<&str>, exists| {
            config_path(argument.map(PathBuf::from), variable.map(OsString::from), usual, exists)
        };
        assert_eq!(find(Some("a"), Some("b"), true), Some("a".into()));
        assert_eq!(find(None, Some("b"), true), Some("b".into()));
        assert_eq!(find(None, Some(""), true), Some(usual.into()));
        assert_eq!(find(None, None, true), Some(usual.into()));
        assert_eq!(find(None, None, false), None);
    }

    #[test]
    fn the_daemon_is_looked_for_in_this_order() {
        let dir = tempfile::tempdir().unwrap();
        let (config, token) = (dir.path().join("config.toml"), dir.path().join("token"));
        // A command does not need the broker login, which only the daemon can read.
        let text = "[amqp]\nuri = \"amqp://tidegate@rabbit.example\"\npassword_file = \"/none\"\n\
                    [admin]\nlisten = \"127.0.0.1:1234\"\n";
        std::fs::write(&config, text).unwrap();
        std::fs::write(&token, "from-a-file\n").unwrap();
        let find =
            |url: Option<&str>, file: Option<&Path>, variable_url: Option<&str>, variable: Option<&str>| {
                let arguments =
                    DaemonArgs { url: url.map(str::to_owned), token_file: file.map(Path::to_path_buf) };
                let client = client_of(
                    &arguments,
                    variable_url.map(str::to_owned),
                    variable.map(str::to_owned),
                    Some(&config),
                );
                client.map(|client| client.shown())
            };
        let at = |base: &str, token: Option<&str>| (base.to_owned(), token.map(|t| format!("Bearer {t}")));
        assert_eq!(find(None, None, None, None).unwrap(), at("http://127.0.0.1:1234", None));
        let both = find(None, Some(&token), None, Some("from-a-variable"));
        assert_eq!(both.unwrap(), at("http://127.0.0.1:1234", Some("from-a-file")));
        let variables = find(None, None, Some("http://far:1/"), Some("from-a-variable"));
        assert_eq!(variables.unwrap(), at("http://far:1", Some("from-a-variable")));
        let arguments = find(Some("http://[::1]:2"), None, Some("http://far:1"), None);
        assert_eq!(arguments.unwrap(), at("http://[::1]:2", None));
        let socket = find(Some("unix:/run/x.sock"), None, None, Some("from-a-variable"));
        assert_eq!(socket.unwrap(), at("unix:/run/x.sock", Some("from-a-variable")));
        assert_eq!(find(None, None, Some("unix:/run/x.sock"), None).unwrap(), at("unix:/run/x.sock", None));
        for wrong in
            ["https://far", "far:9380", "http://", "http://far/api", "http://user@far", "unix:x", "off"]
        {
            assert_eq!(find(Some(wrong), None, None, None).unwrap_err().exit_code(), 2, "{wrong}");
        }
        assert_eq!(find(None, Some(dir.path()), None, None).unwrap_err().exit_code(), 2);
        std::fs::write(&config, "[admin]\nlisten = \"nowhere\"\n").unwrap();
        assert_eq!(find(None, None, None, None).unwrap_err().exit_code(), 78);
        assert!(find(Some("http://far"), None, None, None).is_ok(), "with a URL no configuration is read");
    }

    #[test]
    fn moments_are_utc() {
        assert_eq!(moment(1_800_000_000_000), "2027-01-15T08:00:00Z");
        assert_eq!(moment(i64::MAX), i64::MAX.to_string());
    }
}
