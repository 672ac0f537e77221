//! Which shard an application has its home in.

/// The shard of an application among `shards` of them, below `shards`. Everything that is known of an
/// application is in one shard: its items, windows, order, ids and pauses.
///
/// Jump consistent hash of Lamping and Veach (2014) over the first 64 bits, big-endian, of the BLAKE3 hash of
/// the name. It depends on nothing else, so that every node of every version gives the same answer.
pub fn home(application: &str, shards: u16) -> u16 {
    let mut key = [0; 8];
    key.copy_from_slice(&blake3::hash(application.as_bytes()).as_bytes()[..8]);
    jump(u64::from_be_bytes(key), shards)
}

/// The bucket of a key, as the paper defines it: of `buckets` or one more, a key has the same bucket or the
/// last one.
fn jump(mut key: u64, buckets: u16) -> u16 {
    let (mut bucket, mut next) = (0, 0_u64);
    while next < u64::from(buckets) {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let step = (1_u64 << 31) as f64 / ((key >> 33) + 1) as f64;
        next = ((bucket + 1) as f64 * step) as u64;
    }
    u16::try_from(bucket).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that other implementations of the paper are tested with.
    #[test]
    fn keys_fall_into_the_published_buckets() {
        let published =
            [(1, 1, 0), (42, 57, 43), (0xDEAD_10CC, 1, 0), (0xDEAD_10CC, 666, 361), (256, 1024, 520)];
        for (key, buckets, bucket) in published {
            assert_eq!(jump(key, buckets), bucket, "{key} of {buckets}");
        }
    }

    #[test]
    fn an_application_has_one_home_and_leaves_it_for_a_new_shard_only() {
        let names: Vec<String> = (0..2_000).map(|n| format!("app-{n}")).collect();
        for shards in 1..=16 {
            let mut counts = vec![0_u32; usize::from(shards)];
            for name in &names {
                let at = home(name, shards);
                counts[usize::from(at)] += 1;
                let more = home(name, shards + 1);
                assert!(more == at || more == shards, "{name}: {at} of {shards}, then {more}");
            }
            let even = 2_000 / u32::from(shards);
            assert!(counts.iter().all(|n| *n > even / 2 && *n < even * 2), "{counts:?}");
        }
    }

    /// What is on a disk depends on them.
    #[test]
    fn homes_never_change() {
        let homes = ["shop", "mail", "größe", ""].map(|name| home(name, 4));
        assert_eq!(homes, [3, 2, 2, 3]);
        assert_eq!(["shop", "mail"].map(|name| home(name, 256)), [223, 90]);
    }
}
