//! The layout of several shards on the disk: one store for each of them in a directory of its own, and beside
//! these a file that says how many they are.
//!
//! ```text
//! <store.path>/SHARDS      one line: `tidegate-shards`, version, number of shards, key
//! <store.path>/IMPORTING   present while an import makes the stores
//! <store.path>/shard-0/    the store of the first shard, see [`super::directory`]; and so on
//! ```
//!
//! The number of shards decides the home of each application, so it never changes: another number is another
//! layout, into which the items are imported.

use super::directory::{self, SHARDS};
use super::OpenError;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use tidegate_config::shard_path;

/// First word of the file.
const FORMAT: &str = "tidegate-shards";
/// Version of the file's content; this program reads no other.
const VERSION: &str = "1";
/// More bytes than the file has.
const LONGEST: u64 = 256;
/// Largest number of shards.
const MOST: u16 = 256;
/// The file that an import leaves behind if it is interrupted.
const IMPORTING: &str = "IMPORTING";

/// What the file `SHARDS` contains.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShardLayout {
    /// Number of shards, 2 to 256.
    pub count: u16,
    /// Random, chosen when the layout is made; a secret of the shards.
    pub key: [u8; 32],
}

impl std::fmt::Debug for ShardLayout {
    /// Leaves the key out.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ShardLayout").field("count", &self.count).finish_non_exhaustive()
    }
}

impl ShardLayout {
    /// The layout in `path` for `count` shards, which is made if there is none. `None`: the count is 1, and
    /// the directory is that of the only store. To be called before any store in `path` is opened. Processes
    /// may call it at the same time: all get the same layout.
    ///
    /// # Errors
    ///
    /// [`OpenError::OtherCount`], [`OpenError::Undivided`], [`OpenError::LostShard`]; otherwise as
    /// [`ShardLayout::find`], and [`OpenError::Random`].
    pub fn claim(path: &Path, count: u16) -> Result<Option<ShardLayout>, OpenError> {
        let found = match ShardLayout::find(path)? {
            Some(found) => found,
            None if count <= 1 => {
                refuse_other_stores(&directory::plain_path(path), count)?;
                return Ok(None);
            }
            None => ShardLayout::make(path, count)?,
        };
        found.refuse_other(path, count)?;
        Ok(Some(found))
    }

    /// Checks what [`ShardLayout::claim`] checks, and the directory of a single store. Nothing is made or
    /// locked, and no store is opened.
    ///
    /// # Errors
    ///
    /// As [`ShardLayout::claim`].
    pub fn check(path: &Path, count: u16) -> Result<(), OpenError> {
        if let Some(found) = ShardLayout::find(path)? {
            return found.refuse_other(path, count);
        }
        refuse_other_stores(&directory::plain_path(path), count)?;
        (0..count).filter(|_| count > 1).try_for_each(|n| directory::inspect(&shard_path(path, n)).map(drop))
    }

    /// Refuses a layout of another number of shards, or one of which a shard is missing.
    fn refuse_other(&self, path: &Path, count: u16) -> Result<(), OpenError> {
        if self.count != count {
            let path = path.to_owned();
            return Err(OpenError::OtherCount { path, found: self.count, wanted: count });
        }
        for path in self.paths(path) {
            // Made with the layout: an empty store in its place would hide that its items are missing.
            if directory::inspect(&path)?.is_none() {
                return Err(OpenError::LostShard { path });
            }
        }
        Ok(())
    }

    /// The layout in `path`; `None`: there is none, or not even the directory. Nothing is made.
    ///
    /// # Errors
    ///
    /// [`OpenError::BadLayout`]; [`OpenError::Incomplete`] if an import was interrupted;
    /// [`OpenError::Symlink`], [`OpenError::NotADirectory`], [`OpenError::Io`].
    pub fn find(path: &Path) -> Result<Option<ShardLayout>, OpenError> {
        let path = directory::plain_path(path);
        if directory::inspect(&path)?.is_none() {
            return Ok(None);
        }
        if directory::file_exists(&path.join(IMPORTING))? {
            return Err(OpenError::Incomplete { path });
        }
        let file = path.join(SHARDS);
        let mut text = Vec::new();
        match directory::own_options().read(true).open(&file) {
            Ok(opened) => {
                opened.take(LONGEST).read_to_end(&mut text).map_err(OpenError::io("read", &file))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(OpenError::io("open", &file)(error)),
        };
        let read = String::from_utf8(text).map_err(|_| "it is not text".to_owned());
        let layout = read.and_then(|text| parse(&text));
        layout.map(Some).map_err(|error| OpenError::BadLayout { path: file, error })
    }

    /// The directories of the shards' stores in `path`, in their order.
    pub fn paths(&self, path: &Path) -> Vec<PathBuf> {
        (0..self.count).map(|number| shard_path(path, number)).collect()
    }

    /// Makes a layout with a random key, or reads the one that another process has made meanwhile.
    fn make(path: &Path, count: u16) -> Result<ShardLayout, OpenError> {
        let path = directory::make(path)?;
        refuse_other_stores(&path, count)?;
        let file = path.join(SHARDS);
        for number in 0..count {
            directory::make(&shard_path(&path, number))?;
        }
        directory::sync_entries(&path)?;
        let mut random = [0; 40];
        getrandom::fill(&mut random).map_err(|e| OpenError::Random(e.to_string()))?;
        let (mut layout, mut name) = (ShardLayout { count, key: [0; 32] }, [0; 8]);
        layout.key.copy_from_slice(&random[..32]);
        name.copy_from_slice(&random[32..]);
        // A link is never put in the place of a file, so the first process decides.
        let new = path.join(format!("{SHARDS}.{:016x}", u64::from_be_bytes(name)));
        let opened = directory::own_options().write(true).create_new(true).open(&new);
        let written = opened.and_then(|mut opened| {
            opened.write_all(layout.text().as_bytes())?;
            opened.sync_all()
        });
        let linked = written.and_then(|()| fs::hard_link(&new, &file));
        // What is left of it says nothing.
        let _ = fs::remove_file(&new);
        let is_own = match linked {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(OpenError::io("make", &file)(error)),
        };
        directory::sync_entries(&path)?;
        if is_own {
            return Ok(layout);
        }
        let gone = || OpenError::BadLayout { path: file, error: "removed while it was read".to_owned() };
        ShardLayout::find(&path)?.ok_or_else(gone)
    }

    fn text(&self) -> String {
        let key: String = self.key.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{FORMAT} {VERSION} {} {key}\n", self.count)
    }
}

/// Checks that no store of a shard is in `path`, in which there is no file about shards; and for several
/// shards, no single store.
fn refuse_other_stores(path: &Path, count: u16) -> Result<(), OpenError> {
    if count > 1 && !directory::is_free(path)? {
        return Err(OpenError::Undivided { path: path.to_owned(), wanted: count });
    }
    for number in 0..MOST {
        let store = shard_path(path, number);
        if !directory::is_free(&store)? {
            let error = format!("missing, although {} holds a store", store.display());
            return Err(OpenError::BadLayout { path: path.join(SHARDS), error });
        }
    }
    Ok(())
}

/// Checks that a directory, which may be missing, contains no store on the disk, neither a single one nor
/// those of shards. A daemon with its store in a database does so at its start. Nothing is made or locked.
///
/// # Errors
///
/// The error of that daemon: [`OpenError::HoldsDisk`] with the directory of a store or of all shards,
/// [`OpenError::Symlink`], [`OpenError::NotADirectory`], [`OpenError::Damaged`], [`OpenError::Io`].
pub fn refuse_disk_store(path: &Path) -> Result<(), OpenError> {
    let plain = directory::plain_path(path);
    directory::inspect(&plain)?;
    if directory::holds_data(&plain)? || directory::file_exists(&plain.join(SHARDS))? {
        return Err(OpenError::HoldsDisk { path: path.to_owned() });
    }
    // The file of a layout may be lost.
    for number in 0..MOST {
        let path = shard_path(&plain, number);
        if directory::holds_data(&path)? {
            return Err(OpenError::HoldsDisk { path });
        }
    }
    Ok(())
}

/// All directories in `path` in which a store on the disk may be: `path` itself, and those of shards.
pub(crate) fn places_of_stores(path: &Path) -> impl Iterator<Item = PathBuf> + '_ {
    std::iter::once(path.to_owned()).chain((0..MOST).map(move |number| shard_path(path, number)))
}

/// The layout in `path`; `None`: a single store may be there. As at a start, stores of shards whose file is
/// missing are refused.
///
/// # Errors
///
/// As [`ShardLayout::find`]; [`OpenError::BadLayout`] for such stores.
pub(crate) fn present_layout(path: &Path) -> Result<Option<ShardLayout>, OpenError> {
    let layout = ShardLayout::find(path)?;
    if layout.is_none() {
        refuse_other_stores(&directory::plain_path(path), 1)?;
    }
    Ok(layout)
}

/// The directories of all stores in `path`: those of its shards, or `path` itself.
///
/// # Errors
///
/// As [`ShardLayout::find`], also for stores of shards whose file is missing.
pub fn store_paths(path: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let layout = present_layout(path)?;
    Ok(layout.map_or_else(|| vec![path.to_owned()], |layout| layout.paths(path)))
}

/// Marks the layout in `path` as incomplete, before the first store is made.
///
/// # Errors
///
/// [`OpenError::Io`].
pub(crate) fn begin_import(path: &Path) -> Result<(), OpenError> {
    directory::own_file(&path.join(IMPORTING))?;
    directory::sync_entries(path)
}

/// Removes the mark, once all stores are complete.
///
/// # Errors
///
/// [`OpenError::Io`].
pub(crate) fn end_import(path: &Path) -> Result<(), OpenError> {
    let mark = path.join(IMPORTING);
    fs::remove_file(&mark).map_err(OpenError::io("remove", &mark))?;
    directory::sync_entries(path)
}

fn parse(text: &str) -> Result<ShardLayout, String> {
    let line = text.strip_suffix('\n').ok_or("it has no line end")?;
    let words: Vec<&str> = line.split(' ').collect();
    let [format, version, count, key] = words[..] else {
        return Err(format!("it is not one line `{FORMAT} {VERSION} COUNT KEY`"));
    };
    if format != FORMAT {
        return Err(format!("it does not begin with `{FORMAT}`"));
    }
    if version != VERSION {
        return Err(format!("its version is {version:?}, and this program reads {VERSION}"));
    }
    let number = count.parse().ok().filter(|number| (2..=MOST).contains(number));
    let number = number.filter(|number: &u16| number.to_string() == count);
    let number = number.ok_or_else(|| format!("its number of shards is {count:?}, and not 2 to {MOST}"))?;
    let mut bytes = [0; 32];
    if key.len() != 64 || !key.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return Err("its key is not 64 hexadecimal digits".to_owned());
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&key[2 * at..2 * at + 2], 16).map_err(|error| error.to_string())?;
    }
    Ok(ShardLayout { count: number, key: bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn refused(path: &Path, count: u16) -> OpenError {
        let looked = ShardLayout::check(path, count).expect_err("good");
        let error = ShardLayout::claim(path, count).expect_err("claimed");
        assert!(!error.is_passing());
        assert_eq!(looked.to_string(), error.to_string(), "a check says what a start says");
        error
    }

    #[test]
    fn a_layout_is_made_once_and_then_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        assert_eq!(ShardLayout::find(&path).unwrap(), None);
        assert_eq!(ShardLayout::claim(&path, 1).unwrap(), None);
        (0..5).for_each(|count| ShardLayout::check(&path, count).unwrap());
        assert!(!path.exists(), "nothing is made");
        let made = ShardLayout::claim(&path.join(""), 4).unwrap().unwrap();
        assert_eq!((made.count, mode(&path), mode(&path.join(SHARDS))), (4, 0o700, 0o600));
        assert_ne!(made.key, [0; 32]);
        assert_eq!(fs::read_to_string(path.join(SHARDS)).unwrap(), made.text());
        assert_eq!(fs::read_dir(&path).unwrap().count(), 5, "the file and a directory for each shard");
        assert_eq!(mode(&path.join("shard-0")), 0o700);
        assert_eq!(ShardLayout::find(&path).unwrap(), Some(made));
        assert_eq!(ShardLayout::claim(&path, 4).unwrap(), Some(made));
        ShardLayout::check(&path, 4).unwrap();
        assert_eq!(made.paths(&path)[3], path.join("shard-3"));
        assert!(!format!("{made:?}").contains("key"), "{made:?}");
        let another = ShardLayout::claim(&dir.path().join("another"), 4).unwrap().unwrap();
        assert_ne!(another.key, made.key);
    }

    #[test]
    fn all_that_make_a_layout_at_once_have_the_same_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        let made: Vec<ShardLayout> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(|| ShardLayout::make(&path, 3).unwrap())).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(made.iter().all(|one| *one == made[0]), "{made:?}");
        // The file appears after the look, which was the same for all above.
        assert_eq!(ShardLayout::make(&path, 5).unwrap(), made[0]);
        let files = fs::read_dir(&path).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_file());
        assert_eq!(files.count(), 1, "nothing else is left");
    }

    #[test]
    fn a_shard_that_is_gone_is_missed() {
        let dir = tempfile::tempdir().unwrap();
        ShardLayout::claim(dir.path(), 3).unwrap();
        fs::remove_dir(dir.path().join("shard-1")).unwrap();
        let error = refused(dir.path(), 3);
        assert!(matches!(&error, OpenError::LostShard { path } if path.ends_with("shard-1")), "{error}");
        fs::create_dir(dir.path().join("shard-1")).unwrap();
        ShardLayout::claim(dir.path(), 3).unwrap();
    }

    #[test]
    fn a_file_that_is_gone_is_missed_also_by_a_single_store() {
        let dir = tempfile::tempdir().unwrap();
        ShardLayout::claim(dir.path(), 2).unwrap();
        fs::write(shard_path(dir.path(), 1).join("COMMITTED"), "").unwrap();
        fs::remove_file(dir.path().join(SHARDS)).unwrap();
        for count in [1, 2] {
            let error = refused(dir.path(), count);
            assert!(matches!(error, OpenError::BadLayout { .. }), "{error}");
        }
    }

    #[test]
    fn another_number_of_shards_is_refused_with_both_ways_out() {
        let dir = tempfile::tempdir().unwrap();
        ShardLayout::claim(dir.path(), 4).unwrap();
        for wanted in [1, 2, 5] {
            let error = refused(dir.path(), wanted);
            assert!(matches!(error, OpenError::OtherCount { found: 4, .. }), "{error}");
            let error = error.to_string();
            let said = format!("holds the items of 4 shards, and shards.count is {wanted}: set");
            assert!(error.contains(&said) && error.contains("shards.count = 4"), "{error}");
            assert!(error.contains(&dir.path().display().to_string()), "{error}");
            assert!(error.contains(&format!("shards.count = {wanted}, `tidegate store import")), "{error}");
        }
    }

    #[test]
    fn a_single_store_is_not_taken_for_shards() {
        for part in ["db", "COMMITTED"] {
            let dir = tempfile::tempdir().unwrap();
            if part == "db" {
                fs::create_dir(dir.path().join(part)).unwrap();
                fs::write(dir.path().join("db/version"), "").unwrap();
            } else {
                fs::write(dir.path().join(part), "").unwrap();
            }
            let error = refused(dir.path(), 3);
            assert!(matches!(error, OpenError::Undivided { wanted: 3, .. }), "{error}");
            assert!(error.to_string().contains("set shards.count = 1;"), "{error}");
            assert!(!dir.path().join(SHARDS).exists());
            assert_eq!(ShardLayout::claim(dir.path(), 1).unwrap(), None);
        }
    }

    /// Without the file nothing says whose home is where.
    #[test]
    fn stores_of_shards_without_their_file_are_not_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let store = shard_path(dir.path(), 7);
        fs::create_dir_all(&store).unwrap();
        ShardLayout::claim(&dir.path().join("beside"), 2).unwrap();
        fs::write(store.join("COMMITTED"), "").unwrap();
        let error = refused(dir.path(), 8).to_string();
        assert!(error.contains("SHARDS: missing, although ") && error.contains("shard-7 holds"), "{error}");
        assert_eq!(store_paths(dir.path()).unwrap_err().to_string(), error);
    }

    #[test]
    fn anything_else_in_the_file_is_refused_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let good = ShardLayout { count: 2, key: [0xa5; 32] }.text();
        let key = "a5".repeat(32);
        assert_eq!(good, format!("tidegate-shards 1 2 {key}\n"));
        let wrong = [
            (String::new(), "it has no line end"),
            (good.trim_end().to_owned(), "it has no line end"),
            (format!("{good}\n"), "its key is not 64 hexadecimal digits"),
            (good.replace(' ', "  "), "it is not one line `tidegate-shards 1 COUNT KEY`"),
            (good.replace("-shards", "-store"), "it does not begin with `tidegate-shards`"),
            (good.replace(" 1 ", " 2 "), "its version is \"2\", and this program reads 1"),
            (good.replace(" 2 ", " 1 "), "its number of shards is \"1\", and not 2 to 256"),
            (good.replace(" 2 ", " 257 "), "its number of shards is \"257\", and not 2 to 256"),
            (good.replace(" 2 ", " 02 "), "its number of shards is \"02\", and not 2 to 256"),
            (good.replace(&key, &key[1..]), "its key is not 64 hexadecimal digits"),
            (good.replace("a5", "A5"), "its key is not 64 hexadecimal digits"),
            (good.replace("a5", "é"), "its key is not 64 hexadecimal digits"),
        ];
        for (text, said) in wrong {
            fs::write(dir.path().join(SHARDS), &text).unwrap();
            let error = refused(dir.path(), 2);
            assert!(matches!(error, OpenError::BadLayout { .. }), "{text:?}: {error}");
            let start = format!("{}: {said}; restore the file", dir.path().join(SHARDS).display());
            assert!(error.to_string().starts_with(&start), "{text:?}: {error}");
        }
        fs::write(dir.path().join(SHARDS), [0xff, b'\n']).unwrap();
        assert!(refused(dir.path(), 2).to_string().contains("it is not text"));
        fs::write(dir.path().join(SHARDS), &good).unwrap();
        assert_eq!(ShardLayout::find(dir.path()).unwrap().unwrap().key, [0xa5; 32]);
    }

    #[test]
    fn a_directory_beside_a_database_contains_no_store() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("own");
        refuse_disk_store(&path).unwrap();
        assert!(!path.exists(), "nothing is made");
        fs::create_dir_all(path.join("db")).unwrap();
        refuse_disk_store(&path).unwrap();
        fs::write(path.join("db/other"), "").unwrap();
        assert!(matches!(refuse_disk_store(&path), Err(OpenError::Damaged { .. })));
        fs::write(path.join("db/version"), "").unwrap();
        assert!(
            matches!(refuse_disk_store(&path), Err(OpenError::HoldsDisk { path: named }) if named == path)
        );
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "nothing is locked");
        let shards = dir.path().join("shards");
        for number in [0, 255] {
            let path = shard_path(&shards, number);
            fs::create_dir_all(path.join("db")).unwrap();
            refuse_disk_store(&shards).unwrap();
            fs::write(path.join("db/version"), "").unwrap();
            let error = refuse_disk_store(&shards).expect_err("refused");
            assert!(matches!(&error, OpenError::HoldsDisk { path: named } if *named == path), "{error}");
            fs::remove_file(path.join("db/version")).unwrap();
        }
        fs::write(shards.join(SHARDS), "").unwrap();
        let error = refuse_disk_store(&shards).expect_err("refused");
        assert!(matches!(&error, OpenError::HoldsDisk { path } if *path == shards), "{error}");
    }

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real");
        let made = ShardLayout::claim(&real, 2).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(matches!(refused(&link, 2), OpenError::Symlink { .. }));
        let other = dir.path().join("other");
        fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(real.join(SHARDS), other.join(SHARDS)).unwrap();
        assert!(matches!(refused(&other, 2), OpenError::Io { .. }));
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(matches!(refused(&dir.path().join("file"), 2), OpenError::NotADirectory { .. }));
        assert_eq!(ShardLayout::find(&real).unwrap(), made);
    }

    #[test]
    fn no_single_store_is_opened_or_made_among_shards() {
        let dir = tempfile::tempdir().unwrap();
        ShardLayout::claim(dir.path(), 2).unwrap();
        let errors = [
            directory::Directory::open(dir.path()).expect_err("opened"),
            directory::Directory::existing(dir.path()).expect_err("opened"),
        ];
        for error in errors {
            assert!(error.to_string().ends_with(&format!("{}/shard-0", dir.path().display())), "{error}");
        }
        assert!(matches!(refuse_disk_store(dir.path()), Err(OpenError::HoldsDisk { .. })));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "nothing is made");
        directory::Directory::open(&shard_path(dir.path(), 1)).unwrap();
    }

    #[test]
    fn an_import_under_way_hides_the_layout() {
        let dir = tempfile::tempdir().unwrap();
        let made = ShardLayout::claim(dir.path(), 2).unwrap();
        begin_import(dir.path()).unwrap();
        assert!(matches!(ShardLayout::find(dir.path()), Err(OpenError::Incomplete { .. })));
        assert!(matches!(refused(dir.path(), 2), OpenError::Incomplete { .. }));
        end_import(dir.path()).unwrap();
        assert_eq!(ShardLayout::find(dir.path()).unwrap(), made);
    }
}
