//! Mutation of a corpus, without coverage feedback: bits, splices, wrong lengths, and tokens of the formats.

use rustix::time::{clock_gettime, ClockId};
use std::fs;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Length limit of an input, bytes.
const MOST: usize = 64 << 10;

/// Tokens of the formats.
const WORDS: [&[u8]; 48] = [
    b"\0",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\0\0\0\0\0\0\0\0",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"\xc3\xa4",
    b"\xe9",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"{",
    b"}",
    b"[",
    b"]",
    b"[[[[[[[[[[[[[[[[",
    b"\"",
    b"\\u0000",
    b"\\ud800",
    b"null",
    b"true",
    b"-0",
    b"1e999",
    b"18446744073709551616",
    b"-9223372036854775809",
    b"0.1",
    b"NaN",
    b"application",
    b"customer",
    b"payload",
    b"payload_base64",
    b"delay_ms",
    b"deliver_at",
    b"id",
    b"x-delay",
    b"x-deliver-at",
    b"x-application",
    b"2030-01-31T09:00:00+01:00",
    b"9999-12-31T23:59:60Z",
    b"%",
    b"%00",
    b"%ff",
    b"&",
    b"=",
    b"+",
    b"\n",
    b"'''",
];

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|value| value.parse().ok())
}

/// Runs a target over its corpus, then over mutations of it, until the time is up.
///
/// # Panics
///
/// At the first input that makes the target panic; the message names its file.
pub fn run(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/fuzz/corpus").join(name);
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no corpus in {}", folder.display());
    let corpus: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64);
    let seed = number("FUZZ_SEED").unwrap_or(now).max(1);
    let mut dice = Dice(seed);
    let limit = Duration::from_secs(number("FUZZ_SECONDS").unwrap_or(2));
    let start = Instant::now();
    let mut runs = 0_u64;
    let mut slowest = Duration::ZERO;
    for input in &corpus {
        slowest = slowest.max(judge(name, target, input, seed));
        runs += 1;
    }
    while start.elapsed() < limit {
        for _ in 0..16 {
            let input = mutated(&mut dice, &corpus);
            slowest = slowest.max(judge(name, target, &input, seed));
            runs += 1;
        }
    }
    println!("{name}: {runs} inputs in {:?}, seed {seed}, the slowest took {slowest:?}", start.elapsed());
    // Quadratic work would take seconds. Measured in processor time, because the thread may have to wait.
    assert!(slowest < Duration::from_secs(2), "{name}: one input took {slowest:?} of work");
}

fn judge(name: &str, target: fn(&[u8]), input: &[u8], seed: u64) -> Duration {
    let start = worked();
    if catch_unwind(AssertUnwindSafe(|| target(input))).is_err() {
        let file: PathBuf = std::env::temp_dir().join(format!("tidegate-fuzz-{name}-{seed}"));
        fs::write(&file, input).unwrap();
        let cut = &input[..input.len().min(400)];
        panic!("{name}, seed {seed}: {} bytes in {}: {}", input.len(), file.display(), cut.escape_ascii());
    }
    worked().saturating_sub(start)
}

/// Processor time used by this thread.
fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn mutated(dice: &mut Dice, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut input = corpus[dice.below(corpus.len())].clone();
    for _ in 0..1 + dice.below(6) {
        let at = dice.below(input.len() + 1);
        match dice.below(9) {
            0 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << (dice.next() % 8);
                }
            }
            1 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = dice.next() as u8;
                }
            }
            2 => input.truncate(at),
            3 => {
                let end = input.len().min(at + 1 + dice.below(16));
                input.drain(at.min(end)..end);
            }
            4 => {
                let word = WORDS[dice.below(WORDS.len())];
                input.splice(at..at, word.iter().copied());
            }
            5 => {
                // The head of this input with the tail of another.
                let other = &corpus[dice.below(corpus.len())];
                input.truncate(at);
                input.extend_from_slice(&other[dice.below(other.len() + 1)..]);
            }
            6 => {
                // Repeats a part of the input.
                let end = input.len().min(at + 1 + dice.below(64));
                let part = input[at.min(end)..end].to_vec();
                for _ in 0..1 + dice.below(8) {
                    input.splice(at..at, part.iter().copied());
                }
            }
            7 => lie(dice, &mut input, at),
            _ => {
                let word = WORDS[dice.below(WORDS.len())];
                let end = input.len().min(at + word.len());
                input.splice(at..end, word.iter().copied());
            }
        }
    }
    input.truncate(MOST);
    input
}

/// Replaces a possible length field: one more, one less, or a wrong value.
fn lie(dice: &mut Dice, input: &mut [u8], at: usize) {
    let width = [1, 2, 4][dice.below(3)];
    let Some(bytes) = input.get_mut(at..at + width) else { return };
    let value = bytes.iter().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
    let left = bytes.len() as u32;
    let lie = match dice.below(5) {
        0 => value.wrapping_add(1),
        1 => value.wrapping_sub(1),
        2 => value.wrapping_mul(2),
        3 => left,
        _ => u32::MAX >> dice.below(32),
    };
    bytes.copy_from_slice(&lie.to_be_bytes()[4 - width..]);
}
