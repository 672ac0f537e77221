//! placeholder until merge
use super::types::Format;
/// o
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead { /// b
 pub batch: u64, /// i
 pub item: u64 }
/// o
pub fn overhead(_format: Format, application: &str, customer: Option<&str>) -> Overhead {
    let n = (application.len() + customer.map_or(0, str::len)) as u64 * 6;
    Overhead { batch: 200 + n, item: 200 + n }
}
