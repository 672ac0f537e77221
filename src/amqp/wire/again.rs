//! Messages that consumers send back, to be delivered again later (`redeliver` of the configuration): a
//! message of `passthrough`, an item that was in a batch, or a whole batch.
//!
//! A broker sends a message back as it was delivered, with a note of that (`x-death`), so an own time in it
//! is over. Without that note the consumer has published the message, and an own time is its wish. The note
//! distinguishes the two because tidegate does not pass such notes on to these consumers.
//!
//! A batch that comes back becomes one item: its id is that of the batch, and it leaves as it came, under the
//! same batch id.

use super::batch::{batch_id, BATCH_TYPE};
use super::copied::Choices;
use super::fields::{self, RETRIED};
use super::fingerprint::{is_of_broker, Fingerprint};
use super::message::{item, too_deep, Message, Terms};
use super::properties::{put_headers, Basic};
use tidegate_config::terms::{batch_header, MAX_NAME};
use tidegate_config::{Readings, Redeliver};
use tidegate_types::{BatchId, Dead, DuplicateRule, NewItem, Reason, Tried};

/// Upper bound on what an entry of a batch adds to its body, apart from the third for base64: names and ids.
const AROUND_A_BODY: u64 = 1 << 20;

/// The next try of a message that has come back, if its application has tries.
pub(crate) struct Comeback {
    /// Number of the try that follows.
    retry: u32,
    /// When it is delivered again unless its consumer says otherwise, UTC ms.
    due: u64,
    /// Its consumer has had its last try.
    over: Option<Box<Dead>>,
}

impl Comeback {
    /// The time that its consumer wishes, else that of the comeback.
    pub(crate) fn due(comeback: Option<&Self>, wished: Option<u64>) -> Option<u64> {
        wished.or(comeback.map(|comeback| comeback.due))
    }

    /// Adds the number of the try, and the verdict once there are no further tries.
    pub(crate) fn apply(comeback: Option<&Self>, tried: Tried) -> (Tried, Option<Box<Dead>>) {
        match comeback {
            Some(Comeback { retry, over, .. }) => (Tried { retry: *retry, ..tried }, over.clone()),
            None => (tried, None),
        }
    }
}

impl Message<'_> {
    /// Settings of an application for what comes back; `None`: it has no tries.
    fn redeliver(&self, application: &str) -> Option<&Redeliver> {
        Some(&*self.readings.of(application).redeliver).filter(|redeliver| redeliver.min > 0)
    }

    /// Selects the headers that go with an item of this application: where tries are counted here, brokers'
    /// notes and the number of the try do not.
    pub(crate) fn kept_headers(&self, application: &str) -> impl Fn(&str) -> bool + Copy {
        let counted = self.redeliver(application).is_some();
        move |name: &str| !counted || name != batch_header::RETRY && !is_of_broker(name)
    }

    /// `None`: the message has not come back, or is treated as any other request.
    pub(crate) fn comeback(&self, application: &str) -> Option<Comeback> {
        self.tried(None).batch?;
        Some(self.try_again(self.redeliver(application)?))
    }

    fn try_again(&self, redeliver: &Redeliver) -> Comeback {
        let header = |name: &str| self.properties.headers().as_ref()?.inner().get(name);
        if header(RETRIED).is_some() && header(batch_header::BATCH).is_none() {
            // Sent back from the dead-letter queue: at once, and counted anew. Its consumer, who sees this
            // mark too, sends it back with the batch in which it came.
            return Comeback { retry: 1, due: self.received, over: None };
        }
        let tries = fields::text(batch_header::RETRY, header(batch_header::RETRY), MAX_NAME).ok().flatten();
        let tries = tries.and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
        let over = (redeliver.attempts > 0 && tries >= redeliver.attempts).then(|| {
            let reason = redeliver.reasons.iter().find_map(|name| Some((name, header(name)?)));
            let reason = reason.map(|(name, value)| format!("; {name}: {}", fields::show(value)));
            let text = format!(
                "given up after {tries} more tries of its consumer (redeliver.attempts){}",
                reason.unwrap_or_default()
            );
            Box::new(fields::verdict(Reason::Attempts, text))
        });
        let due = self.received.saturating_add(redeliver.pause(tries));
        Comeback { retry: tries.saturating_add(1), due, over }
    }

    /// Whether it is a batch that tidegate has published: known by its type, or by its id where its consumer
    /// has published it without. `None`: it is not. `Some(None)`: it is, and has no batch id.
    pub(crate) fn returned_batch(&self) -> Option<Option<BatchId>> {
        let id = self.basic.message_id.and_then(|id| batch_id(id.as_bytes()));
        let named = self.tried(None).batch;
        if self.basic.kind == Some(BATCH_TYPE) {
            return Some(named.or(id));
        }
        let is_one = id.is_some() && id == named;
        let wanted = || self.application().ok().flatten().is_some_and(|of| self.redeliver(&of).is_some());
        (is_one && self.basic.kind.is_none() && wanted()).then_some(named)
    }

    /// Most bytes of a batch that comes back: those of a full batch, or of one with a single item of the
    /// largest size.
    pub(crate) fn most_of_a_batch(&self) -> u64 {
        let application = self.application().ok().flatten().unwrap_or_default();
        let largest = (self.limits.max_body / 3 * 4).saturating_add(AROUND_A_BODY);
        largest.max(self.readings.of(&application).redeliver.largest)
    }

    /// The item that a batch becomes.
    ///
    /// # Errors
    /// Its application has no tries, or it has no batch id.
    pub(crate) fn whole_batch(&self, batch: Option<BatchId>, body: &mut Vec<u8>) -> Result<NewItem, Dead> {
        let application: Box<str> = self.required_application()?.into();
        let Some(redeliver) = self.redeliver(&application) else {
            let name = fields::show_text(&application);
            return Err(fields::invalid(format!(
                "a batch came back (type {BATCH_TYPE}), and redelivery is off for application {name}: set \
                 redeliver = {{ min = \"10s\" }} in its table of [applications]"
            )));
        };
        let Some(batch) = batch else {
            let text = format!("type is {BATCH_TYPE}, and neither x-batch nor message_id is a batch id");
            return Err(fields::invalid(text));
        };
        let comeback = self.try_again(redeliver);
        let customer = self.customer()?.map(Into::into);
        let wished = if self.fields.died { None } else { self.own_time(&application)? };
        let expiry = self.expiry()?;
        let id = batch.to_string();
        let basic = Basic { message_id: Some(&id), kind: Some(BATCH_TYPE), ..self.basic };
        let keep = self.kept_headers(&application);
        let properties = basic.write(|out| put_headers(out, self.properties, |name, _| keep(name)));
        let properties = properties.map_err(|_| too_deep())?;
        self.check_size(properties.len())?;
        // The same try has the same fingerprint, whatever its consumer has added.
        let mut fingerprint = Fingerprint::new();
        let retried = self.properties.headers().as_ref().and_then(|headers| headers.inner().get(RETRIED));
        fingerprint.text(retried.map(fields::show).as_deref());
        fingerprint.text(Some(&id));
        fingerprint.text(Some(&comeback.retry.to_string()));
        if fields::is_moved(self.properties) {
            fingerprint.text(Some("moved"));
        }
        fingerprint.part(application.as_bytes());
        fingerprint.part(body);
        let at = Comeback::due(Some(&comeback), wished);
        let tried = Tried { batch: Some(batch), sent_back: true, ..Tried::default() };
        let (tried, over) = Comeback::apply(Some(&comeback), tried);
        let terms = Terms {
            application,
            customer,
            at,
            expiry,
            on_duplicate: DuplicateRule::Keep,
            fingerprint: fingerprint.finish(),
            tried,
            over,
            event: 0,
        };
        let (body, passed_on) = (std::mem::take(body), Readings::default());
        Ok(item(&basic, terms, properties, body, &mut Choices::new(&passed_on, false)))
    }
}
