//! Connections by leader: which broker to ask, opened when first needed, replaced when broken.
//!
//! It keeps the last metadata and forgets a topic when told that it is stale. It does not retry requests; it does
//! retry metadata until a topic is usable, because a topic just created has no leader for a moment.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ringlog_io::{Io, Monotonic};

use super::address::BrokerAddress;
use super::connection::{Connection, ConnectionConfig};
use super::error::ClientError;
use super::handshake::negotiate;
use super::metadata::{ClusterImage, TopicImage, fetch_image};
use super::wait::{Signal, with_deadline};

/// Pause between two metadata requests for a topic that is not ready.
const METADATA_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Where to begin, tried in order.
    pub bootstrap: Vec<BrokerAddress>,
    /// Every connection.
    pub connection: ConnectionConfig,
    /// How long to wait for a topic to have leaders.
    pub metadata_timeout: Duration,
    /// Whether asking for a missing topic may create it, if the broker is set to do so.
    pub create_missing_topics: bool,
}

impl ClientConfig {
    /// The defaults for these addresses.
    pub fn new(bootstrap: Vec<BrokerAddress>) -> ClientConfig {
        ClientConfig {
            bootstrap,
            connection: ConnectionConfig::default(),
            metadata_timeout: Duration::from_secs(10),
            create_missing_topics: false,
        }
    }
}

/// One of several connections to a broker: partition `p` always uses lane `p % lanes`, so its order is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    /// The broker.
    pub node_id: i32,
    /// Which of the connections to it.
    pub number: u32,
}

enum Entry {
    Connecting,
    Ready(Rc<Connection>),
}

#[derive(Default)]
struct ClusterState {
    first: Option<Rc<Connection>>,
    lanes: BTreeMap<Lane, Entry>,
    cluster_id: Option<String>,
    brokers: BTreeMap<i32, BrokerAddress>,
    topics: BTreeMap<String, Rc<TopicImage>>,
}

struct Inner {
    io: Io,
    config: ClientConfig,
    state: RefCell<ClusterState>,
    lanes_changed: Signal,
}

/// A client of one cluster. Cheap to clone; all clones share connections.
#[derive(Clone)]
pub struct Client {
    inner: Rc<Inner>,
}

/// Removes a `Connecting` entry when the task that connects is dropped or fails.
struct ConnectingGuard<'a> {
    inner: &'a Inner,
    lane: Lane,
}

impl Drop for ConnectingGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.inner.state.borrow_mut();
        if matches!(state.lanes.get(&self.lane), Some(Entry::Connecting)) {
            state.lanes.remove(&self.lane);
        }
        drop(state);
        self.inner.lanes_changed.raise();
    }
}

impl Client {
    /// Connects to the first bootstrap address that answers ApiVersions.
    ///
    /// # Errors
    /// The only address's error, or [`ClientError::NoBroker`] with all of them.
    pub async fn connect(io: &Io, config: ClientConfig) -> Result<Client, ClientError> {
        let inner = Inner {
            io: io.clone(),
            config,
            state: RefCell::new(ClusterState::default()),
            lanes_changed: Signal::default(),
        };
        let client = Client { inner: Rc::new(inner) };
        client.any_connection().await?;
        Ok(client)
    }

    /// The executor it runs on.
    pub fn io(&self) -> &Io {
        &self.inner.io
    }

    /// Its settings.
    pub fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// The cluster id, once metadata was fetched.
    pub fn cluster_id(&self) -> Option<String> {
        self.inner.state.borrow().cluster_id.clone()
    }

    /// A connection to any broker, for requests that every broker answers.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn any_connection(&self) -> Result<Rc<Connection>, ClientError> {
        if let Some(first) = self.usable_connection() {
            return Ok(first);
        }
        // Known brokers are tried too: the bootstrap broker may be the one that died.
        let known: Vec<BrokerAddress> = self.inner.state.borrow().brokers.values().cloned().collect();
        let mut errors = Vec::new();
        for address in self.inner.config.bootstrap.iter().cloned().chain(known) {
            match self.open(address.clone()).await {
                Ok(connection) => {
                    self.inner.state.borrow_mut().first = Some(connection.clone());
                    return Ok(connection);
                }
                Err(error) => errors.push(error),
            }
        }
        match errors.len() {
            1 => Err(errors.remove(0)),
            _ => {
                let attempts = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | ");
                Err(ClientError::NoBroker { attempts })
            }
        }
    }

    fn usable_connection(&self) -> Option<Rc<Connection>> {
        let state = self.inner.state.borrow();
        let lanes = state.lanes.values().filter_map(|entry| match entry {
            Entry::Ready(connection) => Some(connection),
            Entry::Connecting => None,
        });
        state.first.iter().chain(lanes).find(|connection| !connection.is_broken()).cloned()
    }

    async fn open(&self, address: BrokerAddress) -> Result<Rc<Connection>, ClientError> {
        let connection = Connection::open(&self.inner.io, address, &self.inner.config.connection).await?;
        negotiate(&connection).await?;
        Ok(Rc::new(connection))
    }

    /// Metadata of `topics` (`None` = all) as any broker sees it now.
    ///
    /// # Errors
    /// A failed request. Errors of single topics are inside the image.
    pub async fn metadata(&self, topics: Option<&[&str]>) -> Result<ClusterImage, ClientError> {
        let connection = self.any_connection().await?;
        let image = fetch_image(&connection, topics, self.inner.config.create_missing_topics).await?;
        let mut state = self.inner.state.borrow_mut();
        state.cluster_id.clone_from(&image.cluster_id);
        state.brokers.clone_from(&image.brokers);
        Ok(image)
    }

    /// The topic, from memory or from a broker; waits until all its partitions have leaders.
    ///
    /// # Errors
    /// The last error when the topic is not usable within the metadata timeout.
    pub async fn topic(&self, name: &str) -> Result<Rc<TopicImage>, ClientError> {
        if let Some(topic) = self.cached_topic(name) {
            return Ok(topic);
        }
        let deadline = self.inner.io.monotonic_now() + self.inner.config.metadata_timeout;
        loop {
            let error = match self.fetch_topic(name).await {
                Ok(topic) => return Ok(topic),
                Err(error) => error,
            };
            let next = self.inner.io.monotonic_now() + METADATA_RETRY_PAUSE;
            if !error.is_retriable() || next >= deadline {
                return Err(error);
            }
            self.inner.io.sleep_until(next).await;
        }
    }

    /// The topic if its metadata is in memory.
    pub fn cached_topic(&self, name: &str) -> Option<Rc<TopicImage>> {
        self.inner.state.borrow().topics.get(name).cloned()
    }

    async fn fetch_topic(&self, name: &str) -> Result<Rc<TopicImage>, ClientError> {
        let image = self.metadata(Some(&[name])).await?;
        let connection = self.any_connection().await?;
        let topic = image.topics.get(name).ok_or_else(|| ClientError::Missing {
            address: connection.address().to_string(),
            api: "Metadata",
            subject: format!("topic '{name}'"),
        })?;
        if let Some(error) = topic.error(connection.address()) {
            return Err(error);
        }
        let topic = Rc::new(topic.clone());
        self.inner.state.borrow_mut().topics.insert(name.to_owned(), topic.clone());
        Ok(topic)
    }

    /// Forgets a topic whose metadata proved stale.
    pub fn forget_topic(&self, name: &str) {
        self.inner.state.borrow_mut().topics.remove(name);
    }

    /// The connection of `lane` if it is open and whole.
    pub fn ready_connection(&self, lane: Lane) -> Option<Rc<Connection>> {
        match self.inner.state.borrow().lanes.get(&lane) {
            Some(Entry::Ready(connection)) if !connection.is_broken() => Some(connection.clone()),
            _ => None,
        }
    }

    /// The connection of `lane`, opened if need be. Several callers share one attempt.
    ///
    /// # Errors
    /// [`ClientError::NoLeader`] for a broker that metadata does not name, and connect errors.
    pub async fn connection(&self, lane: Lane) -> Result<Rc<Connection>, ClientError> {
        loop {
            if let Some(connection) = self.ready_connection(lane) {
                return Ok(connection);
            }
            if matches!(self.inner.state.borrow().lanes.get(&lane), Some(Entry::Connecting)) {
                self.inner.lanes_changed.raised().await;
                continue;
            }
            let address = self.inner.state.borrow().brokers.get(&lane.node_id).cloned();
            let address = address.ok_or_else(|| ClientError::NoLeader {
                subject: format!("broker {}", lane.node_id),
                reason: "the cluster's metadata does not list this broker".to_owned(),
            })?;
            self.inner.state.borrow_mut().lanes.insert(lane, Entry::Connecting);
            let guard = ConnectingGuard { inner: &self.inner, lane };
            let connection = self.open(address).await?;
            self.inner.state.borrow_mut().lanes.insert(lane, Entry::Ready(connection.clone()));
            drop(guard);
            return Ok(connection);
        }
    }

    /// Sleeps for `pause`, but not beyond `deadline`.
    pub async fn pause_until(&self, pause: Duration, deadline: Monotonic) {
        let io = &self.inner.io;
        // The sleep is the future under the deadline, so that one of the two always ends it.
        let _ = with_deadline(io, deadline, io.sleep(pause)).await;
    }
}
