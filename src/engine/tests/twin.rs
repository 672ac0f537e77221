//! The store on a disk, as the one that the fake store is compared with.

#[path = "../../store/beside_tests.rs"]
mod beside_tests;

use tidegate_config::Config;
use tidegate_fake_store::Twin;

/// Of its cache, bytes.
const MEMORY: u64 = 32 << 20;

/// A new store in a folder of its own.
pub(super) fn on_disk() -> Twin {
    let folder = tempfile::tempdir().expect("a folder");
    beside_tests::compared(move |wall| {
        let path = ("TIDEGATE__STORE__PATH".to_owned(), folder.path().display().to_string());
        let config = Config::load(None, [path].into_iter()).expect("a configuration").config.store;
        tidegate_store::open(&config, MEMORY, false, wall).expect("opened")
    })
}
