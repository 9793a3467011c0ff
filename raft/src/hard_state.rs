//! What a replica must remember over a crash besides its log, and its bytes. Owns the value and its encoding; never decides
//! when it changes.

use std::sync::Arc;

use ringlog_protocol::ids::{NodeId, Offset};

use crate::configuration::{Configuration, ConfigurationError, LEARNERS_MAX, VOTERS_MAX};
use crate::ids::{DirectoryId, ReplicaId, Term};

/// Version of the encoding written by this build. A newer one is refused, never guessed at.
pub const HARD_STATE_VERSION: u8 = 1;

/// Most bytes that version 1 can take.
pub const HARD_STATE_BYTES_MAX: usize =
    1 + 4 + 4 + 16 + 1 + REPLICA_BYTES + 8 + 8 + 2 + (VOTERS_MAX + LEARNERS_MAX) * REPLICA_BYTES;

const REPLICA_BYTES: usize = 4 + 16;

/// Term, vote, log term, configuration and directory of one replica. Node view: it lies in the journal of the core that owns the
/// partition and moves with it.
///
/// Durable before any message or acknowledgement that rests on it.
///
/// # Layout, version 1, little-endian, stable
///
/// ```text
/// u8  version = 1
/// u32 term
/// u32 log term            <= term
/// 16  directory id
/// u8  vote: 0 none, 1 a replica follows
///     [i32 node, 16 directory]
/// u64 configuration version
/// i64 configuration position
/// u8  voters (1..=7), u8 learners (0..=7), then each: i32 node, 16 directory
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HardState {
    /// The highest term seen.
    pub term: Term,
    /// Who got this replica's vote in `term`.
    pub vote: Option<ReplicaId>,
    /// The last term in which this log was made equal to a leader's: `log_term <= term`.
    pub log_term: Term,
    /// Shared, so that persisting a term copies no list.
    pub configuration: Arc<Configuration>,
    /// The directory under which all of this was said.
    pub directory: DirectoryId,
}

/// Bytes that are no hard state.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HardStateError {
    #[error("hard state ends after {bytes} bytes")]
    Truncated { bytes: usize },
    #[error("hard state has {extra} bytes beyond its end")]
    Trailing { extra: usize },
    #[error("hard state has version {version}, this build reads up to {HARD_STATE_VERSION}")]
    NewerVersion { version: u8 },
    #[error("hard state has vote tag {tag}")]
    VoteTag { tag: u8 },
    #[error("hard state has term {term} beyond the largest leader epoch")]
    TermTooLarge { term: u32 },
    #[error("hard state has log term {log_term} above its term {term}")]
    LogTermAboveTerm { log_term: Term, term: Term },
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
}

impl HardState {
    /// The state of a replica that begins a group on its own.
    pub fn alone(replica: ReplicaId) -> HardState {
        HardState {
            term: Term::ZERO,
            vote: None,
            log_term: Term::ZERO,
            configuration: Arc::new(Configuration::alone(replica)),
            directory: replica.directory,
        }
    }

    /// The state of a replica that joins a group of others: it knows nothing but whom it may hear from, and takes the configuration of
    /// the first leader that brings its log up to date. Give it version 0, so that any leader's is newer.
    pub fn joining(replica: ReplicaId, configuration: Configuration) -> HardState {
        HardState { configuration: Arc::new(configuration), ..HardState::alone(replica) }
    }

    /// Appends the encoding, at most [`HARD_STATE_BYTES_MAX`] bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(HARD_STATE_VERSION);
        out.extend_from_slice(&self.term.0.to_le_bytes());
        out.extend_from_slice(&self.log_term.0.to_le_bytes());
        out.extend_from_slice(&self.directory.0);
        out.push(u8::from(self.vote.is_some()));
        if let Some(vote) = self.vote {
            encode_replica(vote, out);
        }
        let configuration = &*self.configuration;
        out.extend_from_slice(&configuration.version.to_le_bytes());
        out.extend_from_slice(&configuration.position.0.to_le_bytes());
        out.push(u8::try_from(configuration.voters.len()).expect("bounded by VOTERS_MAX"));
        out.push(u8::try_from(configuration.learners.len()).expect("bounded by LEARNERS_MAX"));
        configuration
            .voters
            .iter()
            .chain(&configuration.learners)
            .for_each(|replica| encode_replica(*replica, out));
    }

    /// Reads exactly what [`HardState::encode`] wrote.
    ///
    /// # Errors
    /// Whatever is not that: truncated or trailing bytes, a newer version, values outside their ranges.
    pub fn decode(bytes: &[u8]) -> Result<HardState, HardStateError> {
        let mut reader = Reader { whole: bytes.len(), left: bytes };
        let [version] = reader.take()?;
        if version != HARD_STATE_VERSION {
            return Err(HardStateError::NewerVersion { version });
        }
        let term = reader.term()?;
        let log_term = reader.term()?;
        let directory = DirectoryId(reader.take()?);
        let vote = match reader.take()? {
            [0] => None,
            [1] => Some(reader.replica()?),
            [tag] => return Err(HardStateError::VoteTag { tag }),
        };
        let version = u64::from_le_bytes(reader.take()?);
        let position = Offset(i64::from_le_bytes(reader.take()?));
        let [voters, learners] = reader.take()?;
        let (voters, learners) = (usize::from(voters), usize::from(learners));
        if voters > VOTERS_MAX || learners > LEARNERS_MAX {
            return Err(ConfigurationError::Size { voters, learners }.into());
        }
        let voters = (0..voters).map(|_| reader.replica()).collect::<Result<Vec<_>, _>>()?;
        let learners = (0..learners).map(|_| reader.replica()).collect::<Result<Vec<_>, _>>()?;
        if !reader.left.is_empty() {
            return Err(HardStateError::Trailing { extra: reader.left.len() });
        }
        let configuration = Configuration { version, position, voters, learners };
        configuration.validate()?;
        if log_term > term {
            return Err(HardStateError::LogTermAboveTerm { log_term, term });
        }
        Ok(HardState { term, vote, log_term, configuration: Arc::new(configuration), directory })
    }
}

fn encode_replica(replica: ReplicaId, out: &mut Vec<u8>) {
    out.extend_from_slice(&replica.node.0.to_le_bytes());
    out.extend_from_slice(&replica.directory.0);
}

struct Reader<'a> {
    whole: usize,
    left: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], HardStateError> {
        let (taken, left) =
            self.left.split_first_chunk().ok_or(HardStateError::Truncated { bytes: self.whole })?;
        self.left = left;
        Ok(*taken)
    }

    fn term(&mut self) -> Result<Term, HardStateError> {
        let term = Term(u32::from_le_bytes(self.take()?));
        if term > Term::MAX {
            return Err(HardStateError::TermTooLarge { term: term.0 });
        }
        Ok(term)
    }

    fn replica(&mut self) -> Result<ReplicaId, HardStateError> {
        let node = NodeId(i32::from_le_bytes(self.take()?));
        Ok(ReplicaId { node, directory: DirectoryId(self.take()?) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn replica() -> impl Strategy<Value = ReplicaId> {
        (any::<i32>(), any::<[u8; 16]>())
            .prop_map(|(node, directory)| ReplicaId { node: NodeId(node), directory: DirectoryId(directory) })
    }

    prop_compose! {
        fn hard_state()(
            terms in (0..=Term::MAX.0, 0..=Term::MAX.0),
            vote in proptest::option::of(replica()),
            version in any::<u64>(),
            position in 0..=i64::MAX,
            members in proptest::collection::btree_set(replica(), 1..=VOTERS_MAX + LEARNERS_MAX),
            directory in any::<[u8; 16]>(),
        ) -> HardState {
            let mut voters: Vec<ReplicaId> = members.into_iter().collect();
            let learners = voters.split_off(voters.len().min(VOTERS_MAX));
            let configuration = Configuration { version, position: Offset(position), voters, learners };
            HardState {
                term: Term(terms.0.max(terms.1)),
                vote,
                log_term: Term(terms.0.min(terms.1)),
                configuration: Arc::new(configuration),
                directory: DirectoryId(directory),
            }
        }
    }

    fn encoded(state: &HardState) -> Vec<u8> {
        let mut bytes = Vec::new();
        state.encode(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_read_back_and_stays_within_its_bound(state in hard_state()) {
            let bytes = encoded(&state);
            prop_assert!(bytes.len() <= HARD_STATE_BYTES_MAX);
            prop_assert_eq!(HardState::decode(&bytes), Ok(state));
        }

        #[test]
        fn cut_anywhere_it_is_refused(state in hard_state()) {
            let bytes = encoded(&state);
            for length in 0..bytes.len() {
                let read = HardState::decode(&bytes[..length]);
                prop_assert!(matches!(read, Err(HardStateError::Truncated { .. })), "{} bytes: {:?}", length, read);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(state) = HardState::decode(&bytes) {
                prop_assert_eq!(encoded(&state), bytes);
            }
        }
    }

    #[test]
    fn the_bytes_of_version_one_are_fixed() {
        let me = ReplicaId { node: NodeId(1), directory: DirectoryId([0xd1; 16]) };
        let state = HardState { term: Term(3), vote: Some(me), log_term: Term(2), ..HardState::alone(me) };
        let mut expected = vec![1, 3, 0, 0, 0, 2, 0, 0, 0];
        expected.extend([0xd1; 16]);
        expected.extend([1, 1, 0, 0, 0]);
        expected.extend([0xd1; 16]);
        expected.extend([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0]);
        expected.extend([0xd1; 16]);
        assert_eq!(encoded(&state), expected);
    }

    #[test]
    fn a_newer_version_trailing_bytes_and_impossible_values_are_refused() {
        let me = ReplicaId { node: NodeId(1), directory: DirectoryId([1; 16]) };
        let good = encoded(&HardState::alone(me));
        let with = |place: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[place] = byte;
            HardState::decode(&bytes)
        };
        assert_eq!(with(0, 2), Err(HardStateError::NewerVersion { version: 2 }));
        assert_eq!(with(25, 9), Err(HardStateError::VoteTag { tag: 9 }));
        assert_eq!(with(4, 0x80), Err(HardStateError::TermTooLarge { term: 0x8000_0000 }));
        assert_eq!(with(5, 1), Err(HardStateError::LogTermAboveTerm { log_term: Term(1), term: Term(0) }));
        let extra = [good.as_slice(), &[0]].concat();
        assert_eq!(HardState::decode(&extra), Err(HardStateError::Trailing { extra: 1 }));
    }
}
