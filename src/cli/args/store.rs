//! What may be written behind `store`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Subcommands of `store`.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Read every row, and say what is there and what is damaged
    ///
    /// Nothing is repaired, and no row is written. Exit code 1 if anything is wrong.
    Verify(StoreDirArgs),
    /// Print everything that waits, one JSON document a line, so that it can be imported again
    ///
    /// It ends with a line that says so: without it, the export is not whole.
    Export(StoreExportArgs),
    /// Read an export from standard input into a store, which is made if it is not there
    ///
    /// Nothing comes twice: what an earlier import of the same export has brought, and ids that the store
    /// knows, are left out and counted. An import that was cut short goes on where it was.
    Import(StoreDirArgs),
    /// Write all tables anew without what was deleted, and say what that gave back
    ///
    /// A daemon does this by itself as it goes on writing. It is for a store that is to be copied, or whose
    /// disk is short.
    Compact(StoreDirArgs),
}

/// Which store is meant.
#[derive(Args, Debug)]
pub(crate) struct StoreDirArgs {
    /// Directory of the store; with it, no configuration is read [default: store.path]
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

/// Arguments of `store export`.
#[derive(Args, Debug)]
pub(crate) struct StoreExportArgs {
    /// Which store is meant.
    #[command(flatten)]
    pub store: StoreDirArgs,
    /// Ask the running daemon, which has the store open: what is durable at the moment of asking
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
