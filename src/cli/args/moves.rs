//! Arguments of `move`.

use clap::Args;
use std::path::PathBuf;
use std::str::FromStr;

/// Arguments of `move`.
#[derive(Args, Debug)]
pub(crate) struct MoveArgs {
    /// The store: disk:DIR, or disk for store.path; postgres for the database of the configuration, or
    /// postgres:FILE for that of another configuration file
    #[arg(long, value_name = "STORE")]
    pub from: MoveSource,
    /// Move although applications or customers are paused or slowed down in the store: requests carry no
    /// pauses
    #[arg(long)]
    pub despite_pauses: bool,
}

/// A store to be emptied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MoveSource {
    /// That in this directory; `None`: the configured one.
    Disk(Option<PathBuf>),
    /// That in the database of this configuration file; `None`: of the command's configuration.
    Postgres(Option<PathBuf>),
}

impl FromStr for MoveSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, path) = text.split_once(':').map_or((text, None), |(kind, path)| (kind, Some(path)));
        match (kind, path) {
            (_, Some("")) => Err(format!("a path is missing behind {kind}:")),
            ("disk", path) => Ok(MoveSource::Disk(path.map(PathBuf::from))),
            ("postgres", path) => Ok(MoveSource::Postgres(path.map(PathBuf::from))),
            _ => Err("must be disk, disk:DIR, postgres or postgres:FILE".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, CliCommand};
    use super::*;
    use clap::Parser;

    fn from(line: &str) -> Result<MoveSource, i32> {
        let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.exit_code())?;
        assert!(!cli.command.asks_the_daemon());
        let CliCommand::Move(args) = cli.command else { panic!("{line}") };
        Ok(args.from)
    }

    #[test]
    fn a_store_is_named_by_its_kind_and_its_place() {
        for (text, meant) in [
            ("disk", MoveSource::Disk(None)),
            ("disk:/var/lib/x", MoveSource::Disk(Some("/var/lib/x".into()))),
            ("disk:a:b", MoveSource::Disk(Some("a:b".into()))),
            ("postgres", MoveSource::Postgres(None)),
            ("postgres:/etc/old.toml", MoveSource::Postgres(Some("/etc/old.toml".into()))),
        ] {
            assert_eq!(from(&format!("tidegate move --from {text}")), Ok(meant));
        }
        for wrong in ["tidegate move", "tidegate move --from memory", "tidegate move --from disk:"] {
            assert_eq!(from(wrong), Err(2), "{wrong}");
        }
    }
}
