//! Arguments of `store`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Subcommands of `store`.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Read every row, and report what is there and what is damaged
    ///
    /// The command repairs nothing and writes no row. Exit code 1 if anything is damaged.
    Verify(StoreDirArgs),
    /// Print everything in the store, one JSON document per line, for `store import`
    ///
    /// The last line marks the end: an export without it is incomplete.
    Export(StoreExportArgs),
    /// Make a store of an export from standard input, in an empty directory or a new one
    ///
    /// The store is the exported one again, with its ids. If the import is interrupted, what it leaves is
    /// refused: remove the directory, and import again. With several shards, each gets what belongs to it.
    Import(StoreDirArgs),
    /// Rewrite all tables without deleted rows, and report the space that this freed
    ///
    /// A running daemon does this when disk space is short. Use the command before you copy a stopped store.
    Compact(StoreDirArgs),
}

/// The store of a command, or those of all shards.
#[derive(Args, Debug)]
pub(crate) struct StoreDirArgs {
    /// Directory of the store; if given, no configuration is read [default: store.path]
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

/// Arguments of `store export`.
#[derive(Args, Debug)]
pub(crate) struct StoreExportArgs {
    /// Directory of the store.
    #[command(flatten)]
    pub store: StoreDirArgs,
    /// Export from the running daemon: what is durable at the moment of the request
    #[arg(long, conflicts_with = "directory")]
    pub running: bool,
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, CliCommand};
    use super::*;
    use clap::Parser;

    fn parse(line: &str) -> Result<StoreCommand, i32> {
        let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.exit_code())?;
        let CliCommand::Store(command) = cli.command else { panic!("{line}") };
        Ok(command)
    }

    #[test]
    fn a_store_is_named_or_the_configured_one() {
        let Ok(StoreCommand::Verify(args)) = parse("tidegate store verify") else { panic!("no verify") };
        assert_eq!(args.directory, None);
        let Ok(StoreCommand::Compact(args)) = parse("tidegate store compact /var/lib/x --output json") else {
            panic!("no compact")
        };
        assert_eq!(args.directory, Some("/var/lib/x".into()));
        for (line, running) in
            [("tidegate store export --running", true), ("tidegate store export /x", false)]
        {
            let Ok(StoreCommand::Export(args)) = parse(line) else { panic!("no export") };
            assert_eq!(args.running, running);
        }
        for wrong in
            ["tidegate store", "tidegate store verify a b", "tidegate store export /var/lib/x --running"]
        {
            assert_eq!(parse(wrong).err(), Some(2), "{wrong}");
        }
    }
}
