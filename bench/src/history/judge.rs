//! The rules that need the whole history. Pure: what was gathered in, a verdict out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::check::{CheckOptions, Checker, SentBatch, ValueState};
use super::consumer::KeyNumber;
use super::key_log::{ALTERED, KeyLog, Slot};
use super::operation::{AcksLevel, Outcome};
use super::verdict::{Counts, Findings, KeyLag, Rule, Verdict};

/// Nanoseconds in a millisecond.
const MILLISECOND: u64 = 1_000_000;

struct Judge {
    options: CheckOptions,
    logs: Vec<KeyLog>,
    sent: Vec<SentBatch>,
    values: BTreeMap<u64, ValueState>,
    findings: Findings,
    counts: Counts,
}

/// Applies the rules.
pub(super) fn judge(checker: Checker) -> Verdict {
    let Checker { options, logs, sent, values, findings, counts, .. } = checker;
    let mut judge = Judge { options, logs, sent, values, findings, counts };
    judge.acknowledged_offsets();
    judge.values_read();
    judge.batches();
    judge.poll_skips();
    judge.vanished();
    judge.order_of_sends();
    judge.stuck();
    judge.verdict()
}

impl SentBatch {
    /// Whether the answer promises anything.
    fn is_promised(&self, options: &CheckOptions) -> bool {
        self.outcome == Outcome::Ok
            && match self.acks {
                AcksLevel::All => true,
                AcksLevel::Leader => options.acks_1_is_durable,
                AcksLevel::None => false,
            }
    }

    /// Each value with the offset that the answer gave it.
    fn acknowledged(&self) -> impl Iterator<Item = (i64, u64)> + '_ {
        let base = self.offset.filter(|_| self.outcome == Outcome::Ok);
        base.into_iter().flat_map(|base| (base..).zip(self.values.iter().copied()))
    }

    fn may_be_twice(&self) -> bool {
        !self.is_idempotent && self.is_retried
    }
}

impl Judge {
    /// Offsets named by answers take part in the log: they may not hold another value, nor the value be elsewhere.
    fn acknowledged_offsets(&mut self) {
        let Judge { options, logs, sent, values, findings, counts, .. } = self;
        for batch in sent.iter().filter(|batch| batch.is_promised(options)) {
            let Some(log) = logs.get_mut(batch.key) else { continue };
            for (offset, value) in batch.acknowledged() {
                let slot = log.slots.entry(offset).or_insert(Slot { value, is_read: false, is_final: false });
                if slot.value != value && slot.value != ALTERED {
                    let found = slot.value;
                    findings.add(Rule::InconsistentOffsets, || {
                        format!(
                            "{}: offset {offset} holds value {found}, but was given to value {value} of process {} ({})",
                            log.key, batch.process, batch.place
                        )
                    });
                }
                let read = values.get(&value).and_then(|state| state.read);
                let elsewhere = read.filter(|(key, at)| *key == batch.key && *at != offset);
                let Some((_, at)) = elsewhere else { continue };
                if batch.may_be_twice() {
                    counts.duplicates_allowed += 1;
                } else {
                    findings.add(Rule::Duplicate, || {
                        format!(
                            "{}: value {value} was acknowledged at offset {offset} and read at {at} (process {}, {})",
                            log.key, batch.process, batch.place
                        )
                    });
                }
            }
        }
    }

    /// What was read must have been sent, to this partition, not refused, and stand once.
    fn values_read(&mut self) {
        let Judge { logs, sent, values, findings, counts, .. } = self;
        for (value, state) in values.iter() {
            let Some((key, offset)) = state.read else { continue };
            counts.values_read += 1;
            let name = |key: KeyNumber| logs.get(key).map(|log| log.key.to_string()).unwrap_or_default();
            let batch = state.sent.and_then(|number| sent.get(number));
            let strange = [Some((key, offset)), state.read_again]
                .into_iter()
                .flatten()
                .find(|(key, _)| batch.is_none_or(|batch| batch.key != *key));
            if let Some((key, offset)) = strange {
                let sent_to = batch.map_or("nowhere".to_owned(), |batch| format!("to {}", name(batch.key)));
                findings.add(Rule::UnknownValue, || {
                    format!("{}: value {value} was read at offset {offset}; it was sent {sent_to}", name(key))
                });
                continue;
            }
            let Some(batch) = batch else { continue };
            match batch.outcome {
                Outcome::Fail => findings.add(Rule::AbortedRead, || {
                    format!(
                        "{}: value {value} was read at offset {offset}, but its send by process {} failed ({})",
                        name(key),
                        batch.process,
                        batch.place
                    )
                }),
                Outcome::Info => counts.values_info_read += 1,
                Outcome::Ok => {}
            }
            let Some((_, again)) = state.read_again else { continue };
            if batch.may_be_twice() {
                counts.duplicates_allowed += 1;
            } else {
                findings.add(Rule::Duplicate, || {
                    format!(
                        "{}: value {value} of process {} stands at offsets {offset} and {again} (sent on {})",
                        name(key),
                        batch.process,
                        batch.place
                    )
                });
            }
        }
    }

    /// What was promised must be there; what was not must be there whole or not at all.
    fn batches(&mut self) {
        let Judge { options, logs, sent, values, findings, counts, .. } = self;
        for batch in sent.iter() {
            let Some(log) = logs.get_mut(batch.key) else { continue };
            if batch.is_promised(options) {
                promised(log, batch, values, findings, counts);
            } else if batch.outcome != Outcome::Fail {
                if batch.outcome == Outcome::Ok {
                    let read = |value: &&u64| values.get(*value).is_some_and(|state| state.read.is_some());
                    counts.losses_allowed += batch.values.iter().filter(|value| !read(value)).count() as u64;
                }
                torn(log, batch, values, findings);
            }
        }
    }

    /// A gap is a skip if somebody read what lies in it; otherwise nothing was there, or it is a lost write.
    fn poll_skips(&mut self) {
        let Judge { logs, findings, .. } = self;
        for log in logs.iter() {
            for gap in &log.gaps {
                let Some((offset, value)) = log.read_within(gap.from..gap.to) else { continue };
                let rule = if gap.is_internal { Rule::IntPollSkip } else { Rule::PollSkip };
                findings.add(rule, || {
                    format!(
                        "{}: process {} went from offset {} to {} and left out value {value} at {offset} ({})",
                        log.key, gap.process, gap.from, gap.to, gap.place
                    )
                });
            }
        }
    }

    /// What a consumer has read was committed, whether or not its sender got an answer.
    fn vanished(&mut self) {
        let Judge { logs, findings, .. } = self;
        for log in logs.iter().filter(|log| log.is_read_to_the_end()) {
            for (offset, value) in log.vanished() {
                findings.add(Rule::Vanished, || {
                    format!(
                        "{}: value {value} was read at offset {offset} and is not in the final read",
                        log.key
                    )
                });
            }
        }
    }

    fn order_of_sends(&mut self) {
        let Judge { options, logs, sent, findings, .. } = self;
        let mut streams: BTreeMap<(u64, KeyNumber), Vec<&SentBatch>> = BTreeMap::new();
        for batch in sent.iter().filter(|batch| batch.is_promised(options) && batch.offset.is_some()) {
            streams.entry((batch.process, batch.key)).or_default().push(batch);
        }
        for ((_, key), mut stream) in streams {
            // Without times the order of lines is the order of sending; the sort is stable.
            if stream.iter().all(|batch| batch.span.is_some()) {
                stream.sort_by_key(|batch| batch.span.map(|span| span.start));
            }
            if let Some(log) = logs.get(key) {
                order_of_stream(log, &stream, findings);
            }
        }
    }

    fn stuck(&mut self) {
        let Judge { options, logs, sent, findings, .. } = self;
        for log in logs.iter() {
            let Some(read) = log.final_read else { continue };
            if !log.is_read_to_the_end() {
                let (reached, end) = (read.reached, read.end);
                findings.add(Rule::Stuck, || {
                    format!("{}: the final read got to offset {reached} of {end}", log.key)
                });
            } else if read.pause_max > options.stuck_after {
                let pause = read.pause_max / MILLISECOND;
                findings
                    .add(Rule::Stuck, || format!("{}: the final read stood still for {pause} ms", log.key));
            }
        }
        for batch in sent.iter().filter(|batch| batch.is_final && batch.outcome != Outcome::Ok) {
            let Some(log) = logs.get(batch.key) else { continue };
            if log.damaged_from < i64::MAX {
                continue;
            }
            findings.add(Rule::Stuck, || {
                let word = if batch.outcome == Outcome::Fail { "failed" } else { "was not answered" };
                format!(
                    "{}: a send {word} though everything was healed (process {}, {})",
                    log.key, batch.process, batch.place
                )
            });
        }
    }

    fn verdict(mut self) -> Verdict {
        let mut missing: Vec<String> = self
            .sent
            .iter()
            .filter_map(|batch| self.logs.get(batch.key))
            .filter(|log| log.final_read.is_none())
            .map(|log| log.key.to_string())
            .collect();
        missing.sort();
        missing.dedup();
        let mut not_judged = Vec::new();
        if let Some(first) = missing.first() {
            let others = missing.len() - 1;
            let more = if others == 0 { String::new() } else { format!(" and {others} more") };
            not_judged.push(format!("unseen and stuck: no final read of {first}{more}"));
        }
        self.lag();
        let lag = self
            .logs
            .iter()
            .filter(|log| log.lag_max > 0)
            .map(|log| KeyLag { key: log.key.to_string(), worst_ms: log.lag_max / MILLISECOND })
            .collect();
        let anomalies = self.findings.into_anomalies();
        Verdict {
            is_clean: anomalies.is_empty(),
            anomalies,
            counts: self.counts,
            has_final_read: missing.is_empty(),
            not_judged,
            lag,
        }
    }

    fn lag(&mut self) {
        for batch in self.sent.iter().filter(|batch| batch.outcome == Outcome::Ok) {
            let (Some(span), Some(log)) = (batch.span, self.logs.get_mut(batch.key)) else { continue };
            let read_at =
                batch.values.iter().filter_map(|value| self.values.get(value)).map(|state| state.read_at);
            let latest = read_at.max().unwrap_or(0);
            log.lag_max = log.lag_max.max(latest.saturating_sub(span.end));
        }
    }
}

fn promised(
    log: &KeyLog,
    batch: &SentBatch,
    values: &BTreeMap<u64, ValueState>,
    findings: &mut Findings,
    counts: &mut Counts,
) {
    counts.values_acknowledged += batch.values.len() as u64;
    for (index, value) in batch.values.iter().enumerate() {
        let offset = batch.offset.map(|base| base + index as i64);
        let was_read = values.get(value).is_some_and(|state| state.read.is_some());
        // Altered bytes at its offset were reported as such.
        let is_altered =
            offset.and_then(|offset| log.slots.get(&offset)).is_some_and(|slot| slot.value == ALTERED);
        if was_read || is_altered {
            continue;
        }
        let is_excused = match offset {
            Some(offset) => !log.is_required(offset),
            // Where it stood is not known, so it may have stood there.
            None => log.log_start > 0 || log.damaged_from < i64::MAX,
        };
        if is_excused {
            counts.values_excused += 1;
        } else if let Some(offset) = offset.filter(|offset| log.is_covered(*offset)) {
            findings.add(Rule::LostWrite, || {
                format!(
                    "{}: value {value}, acknowledged at offset {offset} to process {} ({}), was read by nobody",
                    log.key, batch.process, batch.place
                )
            });
        } else if log.is_read_to_the_end() {
            let place = offset.map_or("an offset not told".to_owned(), |offset| format!("offset {offset}"));
            findings.add(Rule::Unseen, || {
                format!(
                    "{}: value {value}, acknowledged at {place} to process {} ({}), is not in the final read",
                    log.key, batch.process, batch.place
                )
            });
        }
    }
}

/// Values of one batch stand side by side; where one was read, the others must be if a consumer passed them.
fn torn(log: &KeyLog, batch: &SentBatch, values: &BTreeMap<u64, ValueState>, findings: &mut Findings) {
    if batch.values.len() < 2 || batch.may_be_twice() {
        return;
    }
    let read = |value: &u64| {
        values.get(value).and_then(|state| state.read).filter(|(key, _)| *key == batch.key).map(|(_, at)| at)
    };
    let bases = batch.values.iter().enumerate();
    let bases = bases.filter_map(|(index, value)| read(value).map(|offset| offset - index as i64));
    let Some(base) = bases.min() else { return };
    let torn = (base..).zip(batch.values.iter()).find(|(due, value)| match read(value) {
        Some(offset) => offset != *due,
        None => {
            log.is_required(*due)
                && log.is_covered(*due)
                && log.slots.get(due).is_none_or(|slot| slot.value != ALTERED)
        }
    });
    if let Some((due, value)) = torn {
        findings.add(Rule::TornBatch, || {
            format!(
                "{}: of a batch of {} by process {} ({}) only a part stands at offset {base}: value {value} is not at {due}",
                log.key,
                batch.values.len(),
                batch.process,
                batch.place
            )
        });
    }
}

/// `stream`: one producer's acknowledged batches of one partition, in the order of sending.
fn order_of_stream(log: &KeyLog, stream: &[&SentBatch], findings: &mut Findings) {
    let mut highest_idempotent: Option<(i64, &SentBatch)> = None;
    let mut highest_answered: Option<(i64, &SentBatch)> = None;
    // Sends that began and whose answers are not yet behind us: end, offset, number.
    let mut open: BinaryHeap<Reverse<(u64, i64, usize)>> = BinaryHeap::new();
    for (number, batch) in stream.iter().enumerate() {
        let Some(offset) = batch.offset else { continue };
        if let Some(span) = batch.span {
            while let Some(Reverse((end, before, index))) = open.peek().copied()
                && end <= span.start
            {
                open.pop();
                if highest_answered.is_none_or(|(highest, _)| before > highest) {
                    highest_answered = stream.get(index).map(|earlier| (before, *earlier));
                }
            }
            open.push(Reverse((span.end, offset, number)));
        }
        let by_sequence = highest_idempotent.filter(|_| batch.is_idempotent);
        let violated =
            [by_sequence, highest_answered].into_iter().flatten().find(|(before, _)| *before >= offset);
        if let Some((before, earlier)) = violated {
            findings.add(Rule::NonmonotonicSend, || {
                format!(
                    "{}: process {} sent the batch of {} at offset {offset} behind that of {} at offset {before}",
                    log.key, batch.process, batch.place, earlier.place
                )
            });
        }
        if batch.is_idempotent && highest_idempotent.is_none_or(|(highest, _)| offset > highest) {
            highest_idempotent = Some((offset, batch));
        }
    }
}
