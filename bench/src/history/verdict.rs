//! What the judgement found: anomalies by rule with examples, counts, what could not be judged. Values and their JSON.

use std::collections::BTreeMap;

use serde::Serialize;

/// Examples kept of each rule.
pub const EXAMPLES_MAX: usize = 20;

/// What a history can break. See [`super::SCHEMA`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// One offset, two values.
    InconsistentOffsets,
    /// One value at two offsets.
    Duplicate,
    /// Acknowledged, passed by a consumer, read by nobody.
    LostWrite,
    /// Acknowledged, not seen by a complete final read.
    Unseen,
    /// Read once, not seen by a complete final read.
    Vanished,
    /// The send failed, the value was read.
    AbortedRead,
    /// A part of a batch is there.
    TornBatch,
    /// Nobody sent it there.
    UnknownValue,
    /// Records left out within a poll.
    IntPollSkip,
    /// Records go back within a poll.
    IntNonmonotonicPoll,
    /// Records left out between polls.
    PollSkip,
    /// Records go back between polls.
    NonmonotonicPoll,
    /// Acknowledged sends in another order than sent.
    NonmonotonicSend,
    /// No progress though all is healed.
    Stuck,
}

impl Rule {
    /// Every rule, in the order of the report.
    pub const ALL: [Rule; 14] = [
        Rule::InconsistentOffsets,
        Rule::Duplicate,
        Rule::LostWrite,
        Rule::Unseen,
        Rule::Vanished,
        Rule::AbortedRead,
        Rule::TornBatch,
        Rule::UnknownValue,
        Rule::IntPollSkip,
        Rule::IntNonmonotonicPoll,
        Rule::PollSkip,
        Rule::NonmonotonicPoll,
        Rule::NonmonotonicSend,
        Rule::Stuck,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Rule::InconsistentOffsets => "inconsistent-offsets",
            Rule::Duplicate => "duplicate",
            Rule::LostWrite => "lost-write",
            Rule::Unseen => "unseen",
            Rule::Vanished => "vanished",
            Rule::AbortedRead => "aborted-read",
            Rule::TornBatch => "torn-batch",
            Rule::UnknownValue => "unknown-value",
            Rule::IntPollSkip => "int-poll-skip",
            Rule::IntNonmonotonicPoll => "int-nonmonotonic-poll",
            Rule::PollSkip => "poll-skip",
            Rule::NonmonotonicPoll => "nonmonotonic-poll",
            Rule::NonmonotonicSend => "nonmonotonic-send",
            Rule::Stuck => "stuck",
        }
    }
}

/// The violations of one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Anomaly {
    /// The rule.
    pub rule: Rule,
    /// How often.
    pub count: u64,
    /// The first [`EXAMPLES_MAX`] in words.
    pub examples: Vec<String>,
}

/// Violations while they are gathered.
#[derive(Debug, Default)]
pub struct Findings {
    by_rule: BTreeMap<Rule, (u64, Vec<String>)>,
}

impl Findings {
    /// One more; its text is made only if it is kept.
    pub fn add(&mut self, rule: Rule, text: impl FnOnce() -> String) {
        let (count, examples) = self.by_rule.entry(rule).or_default();
        *count += 1;
        if examples.len() < EXAMPLES_MAX {
            examples.push(text());
        }
    }

    /// In the order of [`Rule::ALL`].
    pub fn into_anomalies(self) -> Vec<Anomaly> {
        self.by_rule.into_iter().map(|(rule, (count, examples))| Anomaly { rule, count, examples }).collect()
    }
}

/// Of how much the verdict speaks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Lines.
    pub operations: u64,
    /// Partitions.
    pub partitions: u64,
    /// Clients.
    pub processes: u64,
    /// Sends that happened.
    pub sends_ok: u64,
    /// Sends that did not.
    pub sends_fail: u64,
    /// Sends of unknown outcome.
    pub sends_info: u64,
    /// Records in acknowledged sends that promise something.
    pub values_acknowledged: u64,
    /// Records of unknown outcome that were read.
    pub values_info_read: u64,
    /// Polls.
    pub polls: u64,
    /// Records in polls, repeats included.
    pub records_polled: u64,
    /// Different values read.
    pub values_read: u64,
    /// Values that stand twice, as a retry without idempotence may do.
    pub duplicates_allowed: u64,
    /// Values of acks=0 (and acks=1, where it promises nothing) that were not read, as may be.
    pub losses_allowed: u64,
    /// Acknowledged values behind a log start or a damaged place, not required.
    pub values_excused: u64,
    /// Clients that were dropped.
    pub crashes: u64,
}

/// The lag of one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyLag {
    /// The partition.
    pub key: String,
    /// The longest time from an acknowledgement to the first read, milliseconds.
    pub worst_ms: u64,
}

/// The judgement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Whether no rule is broken.
    pub is_clean: bool,
    /// Rules that are broken.
    pub anomalies: Vec<Anomaly>,
    /// Of how much it speaks.
    pub counts: Counts,
    /// Whether every partition that was sent to was read to its end after `final`.
    pub has_final_read: bool,
    /// What could not be judged, and why.
    pub not_judged: Vec<String>,
    /// By partition; empty without times.
    pub lag: Vec<KeyLag>,
}
