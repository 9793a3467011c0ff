//! Offsets that a log holds as parts of transactions, such as one that Kafka wrote.

use super::*;

fn of_transaction(producer: i64, sequence: i32, bits: i16) -> BatchOptions {
    let producer = BatchProducer {
        id: ProducerId(producer),
        epoch: ProducerEpoch(0),
        base_sequence: Sequence(sequence),
    };
    BatchOptions { producer: Some(producer), attributes: Attributes(bits), ..BatchOptions::default() }
}

/// The log as somebody else left it.
struct Log(Store);

impl Log {
    async fn commit(&self, partition: i32, offset: i64) {
        write(&self.0, offset_record(partition, Some(offset)), BatchOptions::default()).await;
    }

    async fn forget(&self, partition: i32) {
        write(&self.0, offset_record(partition, None), BatchOptions::default()).await;
    }

    /// As the first batch of its transaction.
    async fn commit_within(&self, producer: i64, partition: i32, offset: i64) {
        let options = of_transaction(producer, 0, Attributes::TRANSACTIONAL);
        write(&self.0, offset_record(partition, Some(offset)), options).await;
    }

    /// The second one.
    async fn end(&self, producer: i64, is_committed: bool) {
        let marker = Bytes::copy_from_slice(&[0, 0, 0, u8::from(is_committed)]);
        let attributes = Attributes::TRANSACTIONAL | Attributes::CONTROL;
        write(&self.0, (marker, Some(Bytes::from_static(&[0; 6]))), of_transaction(producer, 1, attributes))
            .await;
    }
}

/// What the group has once the log is read.
fn found<F: Future<Output = ()> + 'static>(play: impl FnOnce(Log) -> F + 'static, expected: &[(i32, i64)]) {
    let expected: BTreeMap<i32, i64> = expected.iter().copied().collect();
    in_world(1, move |io, _| async move {
        let core = build(&io).await;
        let opening = Opening { key: key(), recovered: None, settings: LogSettings::KEEP_ALL };
        core.store.open(vec![opening]).await;
        play(Log(core.store.clone())).await;
        images::apply(&core, image()).await;
        let stores = vec![core.store.clone()];
        let scene = Scene { io, core, links: Rc::default(), stores };
        scene.until_served().await;
        assert_eq!(scene.offsets().await, Ok(expected));
    });
}

#[test]
fn only_what_a_marker_commits_is_shown() {
    let play = |log: Log| async move {
        log.commit_within(1, 0, 10).await;
        log.commit_within(2, 1, 20).await;
        log.commit_within(3, 2, 30).await;
        log.commit(3, 40).await;
        log.end(1, true).await;
        log.end(2, false).await;
    };
    found(play, &[(0, 10), (3, 40)]);
}

#[test]
fn the_newest_record_counts_whenever_its_transaction_ended() {
    let play = |log: Log| async move {
        // Overtaken by a commit and a deletion of no transaction.
        log.commit_within(1, 0, 10).await;
        log.commit(0, 11).await;
        log.commit_within(2, 1, 20).await;
        log.forget(1).await;
        // Two transactions, of which the older one ends last.
        log.commit_within(3, 2, 30).await;
        log.commit_within(4, 2, 31).await;
        for producer in [4, 3, 2, 1] {
            log.end(producer, true).await;
        }
        // And one that is the newest.
        log.commit(3, 40).await;
        log.commit_within(5, 3, 41).await;
        log.end(5, true).await;
    };
    found(play, &[(0, 11), (2, 31), (3, 41)]);
}
