//! One consumer's way through its partitions: positions, and what breaks the order between and within polls.

use std::collections::BTreeMap;

use super::check::Place;
use super::key_log::{ALTERED, Gap, KeyLog, Slot};
use super::operation::{Polled, Position, Span};
use super::verdict::{Findings, Rule};

/// The number of a partition in the checker's table.
pub type KeyNumber = usize;

/// See the module.
#[derive(Debug, Default)]
pub struct Consumer {
    /// Positions of partitions that the consumer was assigned or read.
    positions: BTreeMap<KeyNumber, Option<i64>>,
    /// Whether partitions come and go between polls.
    is_subscribed: bool,
}

/// One partition's part of a poll.
pub struct Visit<'a> {
    /// Who polls.
    pub process: u64,
    /// What was returned.
    pub polled: &'a Polled,
    /// Whether the assignment changed within the poll.
    pub is_rebalanced: bool,
    /// When.
    pub span: Option<Span>,
    /// Where the history says so.
    pub place: Place,
}

impl Consumer {
    /// Takes partitions by hand; what is not named is not assigned any more.
    pub fn assign(&mut self, positions: impl Iterator<Item = (KeyNumber, Option<i64>)>) {
        self.is_subscribed = false;
        self.positions = positions.collect();
    }

    /// Joins a group.
    pub fn subscribe(&mut self) {
        self.is_subscribed = true;
        self.positions.clear();
    }

    /// Forgets everything: a new client.
    pub fn crash(&mut self) {
        *self = Consumer::default();
    }

    /// Walks what a poll returned of one partition. `seen` is called for each record that is not altered.
    pub fn visit(
        &mut self,
        number: KeyNumber,
        log: &mut KeyLog,
        visit: &Visit<'_>,
        findings: &mut Findings,
        mut seen: impl FnMut(i64, u64),
    ) {
        let position = self.positions.get(&number).copied().flatten();
        let mut due = position.filter(|_| !self.is_subscribed && !visit.is_rebalanced);
        let mut is_internal = false;
        for (offset, value) in &visit.polled.records {
            self.step(log, visit, due, *offset, is_internal, findings);
            record(log, visit, *offset, value.unwrap_or(ALTERED), findings);
            if let Some(value) = value {
                seen(*offset, *value);
            }
            due = (!visit.is_rebalanced).then_some(*offset + 1);
            is_internal = true;
        }
        let after_last = visit.polled.records.last().map(|(offset, _)| *offset + 1);
        if let (Some(due), Some(next)) = (due, visit.polled.next)
            && next > due
        {
            log.cover(due..next);
            note_gap(log, visit, due, next, false);
        }
        let reached = visit.polled.next.or(after_last).or(position);
        self.positions.insert(number, reached);
        progress(log, visit, reached);
    }

    fn step(
        &self,
        log: &mut KeyLog,
        visit: &Visit<'_>,
        due: Option<i64>,
        offset: i64,
        is_internal: bool,
        findings: &mut Findings,
    ) {
        let Some(due) = due else {
            log.cover(offset..offset + 1);
            return;
        };
        if offset >= due {
            log.cover(due..offset + 1);
            note_gap(log, visit, due, offset, is_internal);
            return;
        }
        log.cover(offset..offset + 1);
        let rule = if is_internal { Rule::IntNonmonotonicPoll } else { Rule::NonmonotonicPoll };
        findings.add(rule, || {
            format!(
                "{}: process {} read offset {offset} where {due} or higher was due ({})",
                log.key, visit.process, visit.place
            )
        });
    }
}

fn note_gap(log: &mut KeyLog, visit: &Visit<'_>, from: i64, to: i64, is_internal: bool) {
    if from < to {
        log.gaps.push(Gap { from, to, is_internal, process: visit.process, place: visit.place });
    }
}

fn record(log: &mut KeyLog, visit: &Visit<'_>, offset: i64, value: u64, findings: &mut Findings) {
    if value == ALTERED {
        findings.add(Rule::UnknownValue, || {
            format!(
                "{}: process {} read bytes at offset {offset} that no client sent ({})",
                log.key, visit.process, visit.place
            )
        });
    }
    let is_final = match log.final_read.as_mut().filter(|read| read.process == visit.process) {
        Some(read) => {
            read.first = Some(read.first.map_or(offset, |first| first.min(offset)));
            true
        }
        None => false,
    };
    match log.slots.get_mut(&offset) {
        None => {
            log.slots.insert(offset, Slot { value, is_read: true, is_final });
        }
        Some(slot) => {
            slot.is_read = true;
            slot.is_final |= is_final;
            let first = slot.value;
            if first != value && first != ALTERED && value != ALTERED {
                findings.add(Rule::InconsistentOffsets, || {
                    format!(
                        "{}: offset {offset} held value {first}, process {} read value {value} ({})",
                        log.key, visit.process, visit.place
                    )
                });
            }
        }
    }
}

/// Notes how far the final read got.
fn progress(log: &mut KeyLog, visit: &Visit<'_>, reached: Option<i64>) {
    let (Some(read), Some(reached)) = (log.final_read.as_mut(), reached) else { return };
    if read.process != visit.process || reached <= read.reached {
        return;
    }
    read.reached = reached;
    if let Some(span) = visit.span
        && read.progress_at > 0
    {
        read.pause_max = read.pause_max.max(span.end.saturating_sub(read.progress_at));
        read.progress_at = span.end;
    }
}

/// The positions of an `assign`, by number.
pub fn numbered(
    positions: &[Position],
    mut number: impl FnMut(&Position) -> KeyNumber,
) -> Vec<(KeyNumber, Option<i64>)> {
    positions.iter().map(|position| (number(position), position.offset)).collect()
}
