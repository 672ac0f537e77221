//! Names of threads, by which an operator finds them (`top -H`).

/// Longest name of a thread that Linux keeps, bytes.
const LONGEST_NAME: usize = 15;

/// Name of a thread of the shard with this number. The threads of the first shard have no number: most
/// daemons have one shard. Those of the second have a 2, and so on.
pub fn thread_name(kind: &str, shard: u16) -> String {
    let number = if shard == 0 { String::new() } else { (u32::from(shard) + 1).to_string() };
    let kept = kind.len().min(LONGEST_NAME - number.len());
    format!("{}{number}", kind.get(..kept).unwrap_or(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_thread_is_never_cut_off() {
        assert_eq!(thread_name("tidegate-in", 0), "tidegate-in");
        assert_eq!(thread_name("tidegate-in", 1), "tidegate-in2");
        assert_eq!(thread_name("tidegate-guard", 1), "tidegate-guard2");
        assert_eq!(thread_name("tidegate-guard", 11), "tidegate-guar12");
        assert_eq!(thread_name("tidegate-loop", u16::MAX), "tidegate-l65536");
    }
}
