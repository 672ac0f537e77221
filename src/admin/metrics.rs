//! `/metrics`: the state document and the figures of both connections in OpenMetrics. Pure, except for the
//! figures of the process, which come from the system.
//!
//! Names follow Prometheus' rules: one prefix, base units, `_total` for counters. Counters count for the
//! whole process, so that a reconnect breaks no rate. Labels have values of closed sets. They never contain a
//! customer, an id or an application, since a producer may invent any number of those.

use super::state::{Document, LinkState, MapState, STATES};
use super::traffic::Traffic;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;
use tidegate_common::distribution::Distribution;
use tidegate_common::progress::DaemonPart;
use tidegate_config::StoreKind;

/// The media type of OpenMetrics 1.0.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Writes the page. `refused` is the number of refused requests to the admin port.
///
/// # Errors
/// If a metric cannot be encoded.
pub(super) fn page(document: Document, traffic: Traffic, refused: u64) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ProcessFigures { started_at: document.started_at }));
    registry.sub_registry_with_prefix("tidegate").register_collector(Box::new(DaemonFigures {
        document,
        traffic,
        refused,
    }));
    let mut page = String::new();
    encode(&mut page, &registry)?;
    Ok(page)
}

#[derive(Debug)]
struct DaemonFigures {
    document: Document,
    traffic: Traffic,
    refused: u64,
}

impl Collector for DaemonFigures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut to = Writer(encoder);
        self.daemon(&mut to)?;
        self.items(&mut to)?;
        self.ways(&mut to)?;
        self.store(&mut to)
    }
}

impl DaemonFigures {
    fn daemon(&self, to: &mut Writer<'_>) -> fmt::Result {
        let document = &self.document;
        to.0.encode_descriptor("build", "Version of the binary.", None, MetricType::Info)?
            .encode_info(&[("version", document.version.as_str())])?;
        let states = STATES.map(|word| ([("state", word)], flag(document.state == word)));
        to.gauges("state", "1 for the daemon's state, as in status.", states)?;
        to.gauge("ready", "Whether the daemon takes requests and delivers.", None, flag(document.ready))?;
        let stuck = DaemonPart::ALL.map(DaemonPart::as_str);
        let stuck =
            stuck.map(|part| ([("part", part)], flag(document.stuck.iter().any(|name| name == part))));
        to.gauges("stuck", "1 for a part that has work and makes no progress.", stuck)?;
        let seconds = Some(Unit::Seconds);
        let longest = document.snapshot.longest_turn_us as f64 / 1e6;
        to.gauge("longest_turn", "Longest turn of the loop since the start.", seconds, longest)?;
        let steps = &document.snapshot.totals;
        let steps = [("forward", steps.clock_forward), ("backward", steps.clock_backward)];
        to.counters("clock_steps", "Steps of the wall clock.", by("direction", steps))?;
        let help =
            "Requests to the admin port that were refused, by their head or before their change began.";
        to.counter("admin_refused", help, self.refused)
    }

    fn items(&self, to: &mut Writer<'_>) -> fmt::Result {
        let Document { snapshot, at, .. } = &self.document;
        let items = &snapshot.items;
        let states = [
            ("waiting", items.waiting),
            ("due", items.due),
            ("in_flight", items.in_flight),
            ("parked", items.parked),
            ("in_memory", items.in_memory),
        ];
        let states = states.map(|(state, count)| ([("state", state)], count as f64));
        to.gauges("items", "Items by state; an item may count in several states.", states)?;
        let letters = snapshot.dead_letters.as_ref().map_or(0, |letters| letters.total);
        let help = "Dead letters in the store, which the broker has not confirmed.";
        to.gauge("dead_letters_waiting", help, None, letters as f64)?;
        let overdue = items.oldest_due_at.map_or(0, |due| at.saturating_sub(due)) as f64 / 1e3;
        let help = "How long the first item that may leave has been due.";
        to.gauge("oldest_overdue", help, Some(Unit::Seconds), overdue)?;
        if let Some(due) = items.next_due_at {
            let help = "When the first item in memory is due; later items may be in the store only.";
            to.gauge("next_due_timestamp", help, Some(Unit::Seconds), due as f64 / 1e3)?;
        }
        to.gauge("windows_open", "Windows that have not ended.", None, items.windows as f64)?;
        let help = "Payloads in memory.";
        to.gauge("payload", help, Some(Unit::Bytes), items.payload_bytes as f64)?;
        let help = "Applications known to the daemon.";
        to.gauge("applications", help, None, snapshot.applications_total as f64)?;
        let help = "Whether the daemon takes no requests, on purpose or for lack of room.";
        to.gauge("intake_paused", help, None, flag(snapshot.intake_paused))
    }

    fn ways(&self, to: &mut Writer<'_>) -> fmt::Result {
        let (totals, traffic) = (&self.document.snapshot.totals, &self.traffic);
        to.counter("requests_received", "Deliveries of the ingest queue.", totals.received)?;
        to.counter(
            "requests_redelivered",
            "Requests received that had been delivered before.",
            totals.redelivered,
        )?;
        to.counter(
            "requests_rejected",
            "Requests and entries that became dead letters at once.",
            totals.rejected,
        )?;
        to.counter("items_accepted", "Items taken in.", totals.accepted)?;
        to.counter("items_cancelled", "Items cancelled by a command.", totals.cancelled)?;
        to.counter("items_replaced", "Items replaced by a request with their id.", totals.replaced)?;
        to.counter("items_confirmed", "Items that the broker has confirmed.", totals.confirmed)?;
        to.counter("batches_published", "Batches sent, repeats included.", totals.batches_published)?;
        let settled = [
            ("confirmed", totals.batches_confirmed),
            ("returned", totals.returned),
            ("nacked", totals.nacked),
            ("refused", totals.refused),
            ("unknown", totals.unknown),
        ];
        to.counters("batches_settled", "Results of published batches.", by("result", settled))?;
        to.gauge(
            "batches_in_flight",
            "Batches published and not settled.",
            None,
            self.document.snapshot.in_flight_batches as f64,
        )?;
        // The labels have the names of the state document.
        let named = serde_json::to_value(totals).map_err(|_| fmt::Error)?;
        let help = "Items that became dead letters.";
        to.counters("items_dead", help, by("reason", counts(&named["dead"])))?;
        to.counter(
            "dead_letters_confirmed",
            "Dead letters that the broker has confirmed.",
            totals.dead_confirmed,
        )?;
        let help = "Closed windows, by cause.";
        to.counters("windows_closed", help, by("cause", counts(&named["windows_closed"])))?;
        let help = "Batches sent without a part of their window, for lack of memory.";
        to.counter("windows_in_parts", help, totals.windows_in_parts)?;
        let help = "Customers that may leave sooner than their rates allow, for lack of memory.";
        to.counter("rates_forgotten", help, totals.rates_forgotten)?;
        let rules = named["duplicates"].as_object().into_iter().flatten();
        let duplicates = rules.flat_map(|(rule, results)| {
            counts(results).map(|(result, count)| ([("rule", rule.as_str()), ("result", result)], count))
        });
        to.counters("duplicates", "Requests whose id was known.", duplicates)?;
        let help = "Dropped duplicates that were sent back for another try, but do not qualify as one.";
        to.counter("tries_dropped", help, totals.tries_dropped)?;
        let help = "Items that consumers sent back, accepted for another delivery.";
        to.counter("tries_taken", help, totals.tries_taken)?;
        let lateness = "Per item: moment of publish minus due, without the time a rate held it back.";
        to.histogram("publish_lateness", lateness, Some(Unit::Seconds), &traffic.lateness)?;
        let held = "Per item held back by a rate: the time held back.";
        to.histogram("held_back", held, Some(Unit::Seconds), &traffic.held)?;
        let confirm = "Per batch: publish to confirm.";
        to.histogram("publish_confirm", confirm, Some(Unit::Seconds), &traffic.confirm)?;
        to.histogram("batch_items", "Per batch: number of items.", None, &traffic.batch_items)?;
        let help = "Per batch: length of the body.";
        to.histogram("batch_size", help, Some(Unit::Bytes), &traffic.batch_bytes)?;
        let links = &self.document.links;
        let sides: BTreeSet<&str> = links.iter().map(|link| link.side.as_str()).collect();
        let connections = sides.into_iter().flat_map(|side| {
            LinkState::STATES.map(|state| {
                let count = links.iter().filter(|link| link.side == side && link.state == state).count();
                ([("side", side), ("state", state)], count as f64)
            })
        });
        to.gauges("connection", "Connections to the broker in this state.", connections)?;
        let help = "Connections that ended or could not be opened.";
        to.counters("connections_failed", help, by("side", traffic.connections_failed))?;
        to.counter(
            "frames_unreadable",
            "Connections that ended in a frame that cannot be parsed.",
            traffic.parse_errors,
        )?;
        let help = "Answers to commands whose reply queue does not exist.";
        to.counter("answers_unroutable", help, traffic.answers_unroutable)?;
        let help = "Headers ignored although their name is close to one that tidegate reads.";
        to.counter("headers_near_miss", help, traffic.near_miss_headers)?;
        to.gauge("prefetch", "Current prefetch of the consumer.", None, f64::from(traffic.prefetch))?;
        self.document.map.as_ref().map_or(Ok(()), |map| map_figures(map, to))
    }

    fn store(&self, to: &mut Writer<'_>) -> fmt::Result {
        let store = &self.document.store;
        to.counter("store_commits", "Durable commits.", store.commits)?;
        let seconds = |ms: u64| ms as f64 / 1e3;
        let help = "Per commit: time to write and sync.";
        to.histogram("store_commit", help, Some(Unit::Seconds), &self.traffic.commits)?;
        let help = "Duration of the last commit.";
        to.gauge("store_last_commit", help, Some(Unit::Seconds), seconds(store.last_commit_ms))?;
        let help = "Longest commit since the start.";
        to.gauge("store_longest_commit", help, Some(Unit::Seconds), seconds(store.max_commit_ms))?;
        to.gauge("store_size", "Size on disk.", Some(Unit::Bytes), store.bytes as f64)?;
        if let Some(free) = store.free_bytes {
            to.gauge("store_free", "Free space on its file system.", Some(Unit::Bytes), free as f64)?;
        }
        to.gauge("store_queue", "Commits and reads waiting for the store.", None, store.queue as f64)?;
        to.counter("store_lives", "How often the store was opened.", store.lives)?;
        let help = "How often the daemon took a shared store, by the reason it could.";
        let takeovers = store.takeovers.iter().map(|(reason, count)| (reason.as_str(), *count));
        to.counters("store_takeovers", help, by("reason", takeovers))?;
        let help = "How often the store was lost and reopened.";
        let losses = store.lives_ended.iter().map(|(reason, count)| (reason.as_str(), *count));
        to.counters("store_lives_ended", help, by("reason", losses))?;
        if let Some(left_ms) = store.lease_remaining_ms {
            let help = "Time until this daemon's lease of the store ends, unless renewed.";
            to.gauge("store_lease_remaining", help, Some(Unit::Seconds), seconds(left_ms))?;
        }
        self.shards(to)
    }

    /// Of shards that several nodes may share.
    fn shards(&self, to: &mut Writer<'_>) -> fmt::Result {
        let Document { shards, store, .. } = &self.document;
        if shards.len() < 2 || store.kind != StoreKind::Postgres.as_str() {
            return Ok(());
        }
        let unowned = shards.iter().filter(|line| line.owner.is_none() && line.epoch.is_none()).count();
        let help = "Shards that no node has, as far as this node knows.";
        to.gauge("shards_unowned", help, None, unowned as f64)
    }
}

/// Of several shards only.
fn map_figures(map: &MapState, to: &mut Writer<'_>) -> fmt::Result {
    let MapState { forwarded, misplaced, bound, corrected, bind_failures } = *map;
    let help = "Requests that came through the ingest queue, or to a wrong shard, and are forwarded.";
    to.counters("forwarded_requests", help, by("by", [("sharder", forwarded), ("shard", misplaced)]))?;
    let help = "Bindings of applications to the queues of their shards.";
    let results = [("bound", bound), ("corrected", corrected), ("failed", bind_failures)];
    to.counters("map_bindings", help, by("result", results))
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

/// Samples with this label only.
fn by<'v>(
    label: &'v str,
    values: impl IntoIterator<Item = (&'v str, u64)>,
) -> impl Iterator<Item = ([(&'v str, &'v str); 1], u64)> {
    values.into_iter().map(move |(value, count)| ([(label, value)], count))
}

/// The numeric members of an object of the document.
fn counts(of: &Value) -> impl Iterator<Item = (&str, u64)> {
    let members = of.as_object().into_iter().flatten();
    members.filter_map(|(name, count)| Some((name.as_str(), count.as_u64()?)))
}

struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    fn gauge(&mut self, name: &str, help: &str, unit: Option<Unit>, value: f64) -> fmt::Result {
        self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?.encode_gauge(&value)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Counter).and_then(|to| counted(to, &value))
    }

    fn gauges<'v, const LABELS: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = ([(&'v str, &'v str); LABELS], f64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        samples
            .into_iter()
            .try_for_each(|(labels, value)| family.encode_family(&labels)?.encode_gauge(&value))
    }

    fn counters<'v, const LABELS: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = ([(&'v str, &'v str); LABELS], u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        samples.into_iter().try_for_each(|(labels, count)| counted(family.encode_family(&labels)?, &count))
    }

    /// Durations are recorded in microseconds, other values in their own unit.
    fn histogram(&mut self, name: &str, help: &str, unit: Option<Unit>, of: &Distribution) -> fmt::Result {
        let scale = if matches!(unit, Some(Unit::Seconds)) { 1e6 } else { 1.0 };
        let bound = |bound: &Option<u64>| bound.map_or(f64::INFINITY, |bound| bound as f64 / scale);
        let buckets: Vec<(f64, u64)> = of.counts.iter().map(|(at, count)| (bound(at), *count)).collect();
        let mut metric = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Histogram)?;
        metric.encode_histogram::<NoLabelSet>(of.sum as f64 / scale, of.count, &buckets, None)
    }
}

fn counted(mut to: MetricEncoder<'_>, count: &impl EncodeCounterValue) -> fmt::Result {
    to.encode_counter::<NoLabelSet, _, u64>(count, None)
}

/// The figures that Prometheus defines for every process, under its names.
#[derive(Debug)]
struct ProcessFigures {
    started_at: u64,
}

impl Collector for ProcessFigures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut to = Writer(encoder);
        let start = self.started_at as f64 / 1e3;
        to.gauge("process_start_time", "Start of the process since the epoch.", Some(Unit::Seconds), start)?;
        // Figures that the system does not report are left out.
        let Ok(process) = procfs::process::Process::myself() else { return Ok(()) };
        if let Ok(stat) = process.stat() {
            let cpu = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
            let help = "User and system time.";
            let metric =
                to.0.encode_descriptor("process_cpu", help, Some(&Unit::Seconds), MetricType::Counter)?;
            counted(metric, &cpu)?;
            let resident = stat.rss.saturating_mul(procfs::page_size()) as f64;
            to.gauge("process_resident_memory", "Memory in use.", Some(Unit::Bytes), resident)?;
            to.gauge("process_virtual_memory", "Address space.", Some(Unit::Bytes), stat.vsize as f64)?;
            to.gauge("process_threads", "Threads.", None, stat.num_threads as f64)?;
        }
        if let Ok(open) = process.fd_count() {
            to.gauge("process_open_fds", "Open files and sockets.", None, open as f64)?;
        }
        if let Ok(procfs::process::LimitValue::Value(most)) =
            process.limits().map(|limits| limits.max_open_files.soft_limit)
        {
            to.gauge("process_max_fds", "Limit on open files and sockets.", None, most as f64)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::health::NodeHealth;
    use super::super::state::tests::{example, with_map};
    use super::super::state::ShardLine;
    use super::*;

    fn example_page() -> String {
        let traffic = Traffic {
            lateness: Distribution {
                count: 3,
                sum: 1_500_900,
                counts: vec![(Some(1_000), 1), (Some(2_000_000), 2), (None, 0)],
                ..Distribution::default()
            },
            batch_bytes: Distribution {
                count: 1,
                sum: 300,
                counts: vec![(Some(256), 0), (None, 1)],
                ..Distribution::default()
            },
            connections_failed: [("ingest", 0), ("egress", 3)],
            ..Traffic::default()
        };
        page(Document::new(&example(), &NodeHealth::ready_but(&["egress"])), traffic, 7).unwrap()
    }

    #[test]
    fn every_figure_is_told_under_its_name() {
        let page = example_page();
        for line in [
            "tidegate_build_info{version=\"0.0.0-test\"} 1",
            "tidegate_state{state=\"not_ready\"} 1.0",
            "tidegate_state{state=\"running\"} 0.0",
            "tidegate_ready 0.0",
            "tidegate_items{state=\"waiting\"} 40.0",
            "tidegate_items_dead_total{reason=\"expired\"} 7",
            "tidegate_dead_letters_waiting 14.0",
            "tidegate_items_confirmed_total 100",
            "tidegate_requests_received_total 12",
            "tidegate_next_due_timestamp_seconds 1800000001.0",
            "tidegate_connection{side=\"ingest\",state=\"connected\"} 1.0",
            "tidegate_connections_failed_total{side=\"egress\"} 3",
            "tidegate_publish_lateness_seconds_sum 1.5009",
            "tidegate_publish_lateness_seconds_count 3",
            "tidegate_publish_lateness_seconds_bucket{le=\"0.001\"} 1",
            "tidegate_publish_lateness_seconds_bucket{le=\"2.0\"} 3",
            "tidegate_publish_lateness_seconds_bucket{le=\"+Inf\"} 3",
            "tidegate_batch_size_bytes_bucket{le=\"256.0\"} 0",
            "tidegate_batch_size_bytes_sum 300.0",
            "tidegate_batch_items_count 0",
            "tidegate_store_commit_seconds_count 0",
            "tidegate_store_size_bytes 4096.0",
            "tidegate_store_free_bytes 0.0",
            "tidegate_store_lives_total 2",
            "tidegate_store_takeovers_total{reason=\"expired\"} 2",
            "tidegate_store_lives_ended_total{reason=\"database\"} 1",
            "tidegate_store_lease_remaining_seconds 8.0",
            "tidegate_duplicates_total{rule=\"keep\",result=\"dropped\"} 0",
        ] {
            assert!(page.lines().any(|told| told == line), "{line} is not in\n{page}");
        }
        assert!(page.ends_with("# EOF\n"));
        assert!(
            page.contains("process_resident_memory_bytes ") && page.contains("process_cpu_seconds_total ")
        );
    }

    #[test]
    fn the_map_has_figures_with_several_shards_only() {
        let page = |input| {
            let document = Document::new(&input, &NodeHealth::ready_but(&[]));
            super::page(document, Traffic::default(), 0).unwrap()
        };
        let of_map = |page: &str| -> Vec<String> {
            let names = ["tidegate_forwarded_requests", "tidegate_map_bindings"];
            let is_of_map = |line: &&str| names.iter().any(|name| line.starts_with(name));
            page.lines().filter(is_of_map).map(str::to_owned).collect()
        };
        let told = [
            "tidegate_forwarded_requests_total{by=\"sharder\"} 40",
            "tidegate_forwarded_requests_total{by=\"shard\"} 3",
            "tidegate_map_bindings_total{result=\"bound\"} 5",
            "tidegate_map_bindings_total{result=\"corrected\"} 2",
            "tidegate_map_bindings_total{result=\"failed\"} 1",
        ];
        assert_eq!(of_map(&page(with_map())), told);
        let alone = page(example());
        assert!(!alone.contains("forwarded_requests") && !alone.contains("map_bindings"), "{alone}");
    }

    /// Excluded: a shard that counts as one of no node while this one waits for its queue's lock.
    #[test]
    fn shards_that_no_node_has_are_counted_where_nodes_share_them() {
        let told = |kind: &str, shards| {
            let mut input = example();
            (input.shards, input.store.kind) = (shards, kind.to_owned());
            let document = Document::new(&input, &NodeHealth::ready_but(&[]));
            let page = page(document, Traffic::default(), 0).unwrap();
            let line = page.lines().find_map(|line| line.strip_prefix("tidegate_shards_unowned "));
            line.map(str::to_owned)
        };
        let free = ShardLine::default();
        let here = ShardLine { epoch: Some(3), ..ShardLine::default() };
        let there = ShardLine { owner: Some("there".to_owned()), ..ShardLine::default() };
        let all = vec![here.clone(), free.clone(), there.clone(), free.clone()];
        assert_eq!(told("postgres", all.clone()).as_deref(), Some("2.0"));
        assert_eq!(told("postgres", vec![here, there]).as_deref(), Some("0.0"));
        assert_eq!((told("postgres", vec![free]), told("disk", all)), (None, None));
    }

    /// An alert that asks for a gauge which is told only at times would end too soon.
    #[test]
    fn no_dead_letters_are_told_as_well() {
        let mut input = example();
        input.snapshot.dead_letters = None;
        let document = Document::new(&input, &NodeHealth::ready_but(&[]));
        let page = page(document, Traffic::default(), 0).unwrap();
        assert!(page.contains("\ntidegate_dead_letters_waiting 0.0\n"), "{page}");
    }

    /// The page for ten thousand applications is no longer than the page for two.
    #[test]
    fn nothing_of_it_grows_with_what_producers_name() {
        let page = example_page();
        assert!(!page.contains("mail") && !page.contains("sms"), "{page}");
    }
}
