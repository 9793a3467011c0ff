//! One seed's world: a broker that loses power and comes back while clients work, and what its history shows. Everything
//! that happens follows from the seed and the scale.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ringlog_bench::client::ClientError;
use ringlog_bench::client::producer::Acks;
use ringlog_io::sim::{Host, Outcome, UnsyncedData, World};
use ringlog_io::{Io, Priority};

use super::clients::{self, ChurnPlan, Fates, Hands, ProducerPlan, SharedHistory, Topic};
use super::history::{Operations, Violation};
use super::node::{BootError, Node, Shape, boot, run};
use super::trim::{self, ShortTopic};
use super::weather::{self, Spell, Weather};

/// Virtual time within which anything must be done that nothing hinders.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Virtual time within which producing goes on once a full disk has room again.
const RESUMES_WITHIN: Duration = Duration::from_secs(10);
const PARTITIONS_MAX: u64 = 8;

/// How much happens in one seed. The same seed at another scale is another run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Times at which the node goes down while clients work, at most.
    pub outages_max: u64,
    /// Longest time between two of them, in milliseconds.
    pub phase_ms_max: u64,
    /// At least 2.
    pub producers_max: u64,
    pub readers_max: u64,
    pub wanderers_max: u64,
    pub churners_max: u64,
    /// Whether spells that need a second or two to have an effect get them.
    pub has_long_spells: bool,
}

impl Scale {
    /// Enough to be hurt by; a second of an unoptimised build.
    pub const TEST: Scale = Scale {
        outages_max: 3,
        phase_ms_max: 250,
        producers_max: 4,
        readers_max: 2,
        wanderers_max: 1,
        churners_max: 1,
        has_long_spells: false,
    };
    /// For long runs: starting and ending cost little beside what happens between.
    pub const SOAK: Scale = Scale {
        outages_max: 5,
        phase_ms_max: 2_000,
        producers_max: 8,
        readers_max: 2,
        wanderers_max: 6,
        churners_max: 2,
        has_long_spells: true,
    };
}

/// What one seed showed.
#[derive(Debug, PartialEq)]
pub struct Run {
    pub violations: Vec<Violation>,
    pub trace_hash: u64,
    pub event_count: u64,
    pub virtual_ms: u64,
    pub sent: u64,
    pub acked: u64,
    pub read: u64,
    pub operations: Operations,
    pub outages: u32,
    /// The bad spells, in their order.
    pub spells: Vec<Spell>,
    /// What was done to the node, for whoever looks into a failure.
    pub course: Vec<String>,
}

/// Plays one seed.
pub fn run_seed(seed: u64, scale: Scale) -> Run {
    CURRENT_SEED.set(Some(seed));
    let mut scene = Scene::new(seed, scale);
    scene.play();
    let run = scene.finish();
    CURRENT_SEED.set(None);
    run
}

thread_local! {
    static CURRENT_SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// A panic inside a run says which seed it was; the broker's log is shown if `RINGLOG_SIM_LOG` is set.
pub fn prepare_output() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("RINGLOG_SIM_LOG").is_some() {
            tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false).init();
        }
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if let Some(seed) = CURRENT_SEED.get() {
                eprintln!("this panic comes back with seed {seed}");
            }
            previous(panic);
        }));
    });
}

/// See the module.
pub struct Scene {
    pub world: World,
    pub broker: Host,
    clients: Host,
    pub history: SharedHistory,
    fates: Fates,
    pub topic: Topic,
    scale: Scale,
    weather: Weather,
    /// The disk failed under the node, which may refuse writes, and to end in order, until it is started again.
    is_hurt: bool,
    short_topic: Option<ShortTopic>,
    stop: Rc<Cell<bool>>,
    /// Clients that still work.
    pub busy: Rc<Cell<u32>>,
    outages: u32,
    spells: Vec<Spell>,
    course: RefCell<Vec<String>>,
}

impl Scene {
    pub fn new(seed: u64, scale: Scale) -> Scene {
        let world = World::new(seed);
        let partition_count = 1 + (world.random_u64() % PARTITIONS_MAX) as u32;
        let weather = Weather::new(&world);
        let chosen = world.random_u64();
        let mut scene = Scene { weather, ..Scene::with_partitions(world, scale, partition_count) };
        // Its large batches cost more than most of what happens in a seed.
        if chosen.is_multiple_of(4) {
            scene.short_topic = Some(ShortTopic::new(&scene.history, chosen / 4));
        }
        scene
    }

    pub fn with_partitions(world: World, scale: Scale, partition_count: u32) -> Scene {
        let (broker, clients) = (world.host("broker"), world.host("clients"));
        let history = SharedHistory::default();
        Scene {
            world,
            broker,
            clients,
            topic: Topic::new(clients::TOPIC, partition_count, &history),
            history,
            fates: Fates::default(),
            scale,
            weather: Weather::fair(),
            is_hurt: false,
            short_topic: None,
            stop: Rc::default(),
            busy: Rc::default(),
            outages: 0,
            spells: Vec::new(),
            course: RefCell::default(),
        }
    }

    fn below(&self, bound: u64) -> u64 {
        self.world.random_u64() % bound
    }

    fn note(&self, what: impl std::fmt::Display) {
        let since_start_us = self.world.now().as_nanos() / 1_000;
        self.course.borrow_mut().push(format!("{since_start_us} us: {what}"));
    }

    fn broken(&self, who: &str, reason: impl Into<String>) {
        self.history.borrow_mut().broken(Violation::Failed { who: who.to_owned(), reason: reason.into() });
    }

    fn shape(&self) -> Shape {
        let (credits, bypass) = ([8, 64, 1024], [0, 0, 300, 16 << 10]);
        Shape {
            core_count: 1 + self.below(3) as u32,
            mesh_credits: credits[self.below(3) as usize],
            bypass_bytes: bypass[self.below(4) as usize],
        }
    }

    fn hands(&self) -> (Io, impl Future<Output = Result<Hands, ClientError>> + use<>) {
        let io = self.clients.executor();
        let (own, address) = (io.clone(), self.broker.address());
        let (history, stop) = (Rc::clone(&self.history), Rc::clone(&self.stop));
        let connected = async move {
            let client = clients::connect(&own, address).await?;
            Ok(Hands { io: own, client, history, stop })
        };
        (io, connected)
    }

    /// Runs work of a client that must succeed; `None` (and a broken rule) if it did not.
    pub fn must<T: 'static, F>(&self, who: &str, work: impl FnOnce(Hands) -> F + 'static) -> Option<T>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let (io, hands) = self.hands();
        let result = run(&self.world, &io, PATIENCE, async move { work(hands.await?).await });
        match result {
            Some(Ok(value)) => return Some(value),
            Some(Err(error)) => self.broken(who, error.to_string()),
            None => self.broken(who, format!("not done within {PATIENCE:?}")),
        }
        None
    }

    /// Starts a client that works beside the others; what it ends with must not be an error.
    pub fn start<F>(&self, who: String, work: impl FnOnce(Hands) -> F + 'static)
    where
        F: Future<Output = Result<(), ClientError>>,
    {
        let (io, hands) = self.hands();
        let (history, busy) = (Rc::clone(&self.history), Rc::clone(&self.busy));
        busy.set(busy.get() + 1);
        io.spawn(Priority::Foreground, async move {
            let result = match hands.await {
                Ok(hands) => work(hands).await,
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                history.borrow_mut().broken(Violation::Failed { who, reason: error.to_string() });
            }
            busy.set(busy.get() - 1);
        })
        .detach();
    }

    /// Makes the topic that all clients share.
    pub fn create_topic(&self) -> Option<()> {
        let topic = self.topic.clone();
        self.must("topic", async move |hands: Hands| {
            clients::create_topic(&hands.client, &topic.name, topic.partition_count()).await
        })
    }

    fn start_clients(&self) {
        for number in 0..2 + self.below(self.scale.producers_max - 1) {
            let plan = self.producer_plan(number);
            let topic = self.topic.clone();
            self.start(format!("producer {number}"), move |hands| clients::produce(hands, topic, plan));
        }
        for number in 0..self.below(self.scale.wanderers_max + 1) {
            let (topic, pause_ms_max) = (self.topic.clone(), self.pause_ms());
            self.start(format!("wanderer {number}"), move |hands| {
                clients::wander(hands, topic, pause_ms_max + 1)
            });
        }
        for number in 0..1 + self.below(self.scale.churners_max) as u32 {
            // Every topic that is there costs each answer of metadata, so they come slowly.
            let pause_ms_max = 50 + self.pause_ms();
            let plan = ChurnPlan { number, pause_ms_max, used_one_in: 1 + self.below(4) };
            let fates = Rc::clone(&self.fates);
            self.start(format!("topics {number}"), move |hands| clients::churn(hands, plan, fates));
        }
    }

    /// The topic that is kept short has one producer and one client that trims it.
    fn start_short_topic(&self) -> Option<()> {
        let Some(short) = self.short_topic.clone() else { return Some(()) };
        let created = short.clone();
        self.must("short topic", async move |hands: Hands| created.create(&hands).await)?;
        let (topic, plan) = (short.topic.clone(), short.producer_plan());
        self.start("producer of the short topic".to_owned(), move |hands| {
            clients::produce(hands, topic, plan)
        });
        let (topic, pause_ms_max) = (short.topic, 1 + self.pause_ms());
        self.start("trimmer".to_owned(), move |hands| trim::trim(hands, topic, pause_ms_max));
        Some(())
    }

    fn pause_ms(&self) -> u64 {
        [2, 20, 60, 400][self.below(4) as usize]
    }

    /// The first producer is idempotent, the second is not; the others are as the seed says.
    fn producer_plan(&self, number: u64) -> ProducerPlan {
        let (acks, is_idempotent) = match (number, self.below(6)) {
            (0, _) | (2.., 0..=1) => (Acks::All, true),
            (1, 0..=2) | (_, 2) => (Acks::All, false),
            (1, _) | (_, 3..=4) => (Acks::Leader, false),
            _ => (Acks::None, false),
        };
        ProducerPlan {
            acks,
            is_idempotent,
            records_per_batch_max: 1 + self.below(3),
            // Large ones fill journal files and segments.
            padding_bytes_max: if self.below(10) == 0 { 16_000 } else { 200 },
            pause_ms_max: self.pause_ms(),
        }
    }

    /// Readers go on until they have read what was there when `ends` was told to them.
    fn start_readers(&self) -> Vec<Rc<RefCell<Option<clients::TopicReader>>>> {
        let mut readers = Vec::new();
        for number in 0..2 + self.below(self.scale.readers_max) {
            let slot = Rc::new(RefCell::new(None));
            readers.push(Rc::clone(&slot));
            let topic = self.topic.clone();
            self.start(format!("reader {number}"), async move |hands: Hands| {
                let reader = clients::reader(&hands, &topic, number == 0);
                *slot.borrow_mut() = Some(reader.clone());
                reader.run().await
            });
        }
        readers
    }

    /// The node goes down, by its own will or not, and comes back. `None` if it did not come back.
    fn outage(&mut self, node: Node) -> Option<Node> {
        self.outages += 1;
        self.history.borrow_mut().disturbed(self.world.now().as_nanos());
        if self.below(4) == 0 {
            self.note("stop");
            if !node.stop(&self.world, PATIENCE) && !self.is_hurt {
                self.broken("stop", "the node did not end");
            }
            // What a clean stop left unsynced would be lost now.
            self.broker.crash_with(UnsyncedData::Lost);
        } else {
            let unsynced = self.cut_power();
            self.note(format!("crash, unsynced data {unsynced:?}"));
        }
        if let Some(reason) = node.failure().filter(|_| !self.is_hurt) {
            self.broken("core", reason);
        }
        self.is_hurt = false;
        drop(node);
        let mut crashes_left = self.below(3);
        loop {
            let hurried = crashes_left > 0 && self.below(2) == 0;
            let limit = if hurried { Duration::from_micros(self.below(60_000)) } else { PATIENCE };
            let shape = self.shape();
            match boot(&self.world, &self.broker, shape, limit) {
                Ok(node) => {
                    self.note(format!("serves with {shape:?}"));
                    let now_ns = self.world.now().as_nanos();
                    let mut history = self.history.borrow_mut();
                    history.healed(now_ns);
                    history.allow_refusals(now_ns);
                    drop(history);
                    return Some(node);
                }
                Err(BootError::TimedOut) if hurried => {
                    crashes_left -= 1;
                    self.note(format!("crash while starting with {shape:?}"));
                    self.cut_power();
                }
                Err(error) => {
                    self.broken("start", format!("{shape:?}: {error}"));
                    return None;
                }
            }
        }
    }

    /// Mostly the disk has written some sectors of what nobody synced, and not others.
    fn cut_power(&self) -> UnsyncedData {
        let unsynced = match self.below(6) {
            0 => UnsyncedData::Kept,
            1 => UnsyncedData::Lost,
            number => UnsyncedData::RandomSubset { torn: number > 3 },
        };
        self.broker.crash_with(unsynced);
        unsynced
    }

    /// Time in which clients work, with a bad spell in most of it.
    fn phase(&mut self) {
        let length_ms = 5 + self.below(self.scale.phase_ms_max);
        let Some(spell) = self.weather.draw(&self.world) else {
            self.world.run_for(Duration::from_millis(length_ms));
            return;
        };
        let before_ms = self.below(length_ms);
        self.world.run_for(Duration::from_millis(before_ms));
        self.note(format!("{spell:?} begins"));
        self.spells.push(spell);
        if spell != Spell::NodeClock && spell != Spell::ClientClock {
            self.history.borrow_mut().disturbed(self.world.now().as_nanos());
        }
        if spell.is_of_disk() {
            self.history.borrow_mut().allow_refusals(u64::MAX);
        }
        self.weather.begin(spell, &self.world, &self.broker, &self.clients);
        if spell == Spell::SlowLink {
            self.start_latecomer();
        }
        let lasts_ms = self.spell_ms(spell, length_ms - before_ms);
        self.world.run_for(Duration::from_millis(lasts_ms));
        let over_at = weather::end(spell, &self.world, &self.broker, &self.clients);
        self.note(format!("{spell:?} is over"));
        if spell == Spell::FullDisk {
            self.await_resumption();
        }
        self.is_hurt |= spell.may_poison();
        if !self.is_hurt {
            let now = self.world.now();
            let mut history = self.history.borrow_mut();
            history.healed(now.max(over_at).as_nanos());
            if spell.is_of_disk() {
                history.allow_refusals((now + RESUMES_WITHIN).as_nanos());
            }
        }
        self.world.run_for(Duration::from_millis(self.below(length_ms)));
    }

    /// How long a spell lasts in which `rest_ms` are left of its phase.
    fn spell_ms(&self, spell: Spell, rest_ms: u64) -> u64 {
        match spell {
            // Some are longer than the patience of a client with one request.
            Spell::Severed | Spell::Deaf | Spell::Mute => {
                let silence_ms = if self.below(4) == 0 { 5_000 } else { 500 };
                1 + self.below(silence_ms)
            }
            // The node looks at its space once a second, a reply may take a second before more is done about it, and a
            // segment is to be closed while what is written of it gets lost.
            Spell::FullDisk | Spell::SlowLink | Spell::LostCopies if self.scale.has_long_spells => {
                1_000 + self.below(self.scale.phase_ms_max)
            }
            _ => rest_ms,
        }
    }

    /// A client that begins to read everything when the link is slow already, in answers far larger than a socket takes.
    fn start_latecomer(&self) {
        let topic = self.topic.clone();
        self.start("latecomer".to_owned(), move |hands| clients::come_late(hands, topic));
    }

    /// Producing goes on by itself soon after there is room again.
    fn await_resumption(&self) {
        let answered = || self.history.borrow().operations.produce;
        let before = answered();
        if self.world.run_until(|| answered() > before, RESUMES_WITHIN) != Outcome::Done {
            self.broken("full disk", format!("nothing was produced within {RESUMES_WITHIN:?} of room"));
        }
    }

    fn finish(self) -> Run {
        let mut history = self.history.borrow_mut();
        Run {
            violations: history.check(),
            trace_hash: self.world.trace_hash(),
            event_count: self.world.event_count(),
            virtual_ms: self.world.now().as_nanos() / 1_000_000,
            sent: history.sent_count(),
            acked: history.acked_count(),
            read: history.read_count(),
            operations: history.operations,
            outages: self.outages,
            spells: self.spells,
            course: self.course.take(),
        }
    }

    /// The first start, on an empty disk.
    fn first_boot(&self) -> Option<Node> {
        let shape = self.shape();
        match boot(&self.world, &self.broker, shape, PATIENCE) {
            Ok(node) => {
                self.note(format!("serves {} partitions with {shape:?}", self.topic.partition_count()));
                Some(node)
            }
            Err(error) => {
                self.broken("first start", error.to_string());
                None
            }
        }
    }

    fn play(&mut self) -> Option<()> {
        let mut node = self.first_boot()?;
        self.create_topic()?;
        let readers = self.start_readers();
        self.start_clients();
        self.start_short_topic()?;
        for _ in 0..1 + self.below(self.scale.outages_max) {
            self.phase();
            node = self.outage(node)?;
        }
        // Promptness shows only when the last outage is a while ago, which is cheap where little is sent.
        let calm_ms = if self.below(3) == 0 { 2_500 } else { 300 };
        self.world.run_for(Duration::from_millis(self.below(calm_ms)));
        self.note("clients stop");
        self.stop.set(true);
        let readers_left = readers.len() as u32;
        if self.world.run_until(|| self.busy.get() <= readers_left, PATIENCE) != Outcome::Done {
            self.broken("producers", "not done in time");
        }
        let topic = self.topic.clone();
        let ends = self.must("ends", async move |hands: Hands| clients::ends(&hands, &topic).await)?;
        for reader in readers {
            if let Some(reader) = &*reader.borrow() {
                reader.set_ends(ends.clone());
            }
        }
        if self.world.run_until(|| self.busy.get() == 0, PATIENCE) != Outcome::Done {
            self.broken("readers", "not done in time");
        }
        node = self.outage(node)?;
        self.look_last(&node)
    }

    fn look_last(&self, node: &Node) -> Option<()> {
        let (topic, fates) = (self.topic.clone(), Rc::clone(&self.fates));
        self.must("last reader", async move |hands: Hands| clients::read_all(&hands, &topic, true).await)?;
        if let Some(ShortTopic { topic, .. }) = self.short_topic.clone() {
            self.must("last reader of the short topic", move |hands| trim::read_rest(hands, topic))?;
        }
        self.must("last look", move |hands| clients::check_topics(hands, fates))?;
        if let Some(reason) = node.failure() {
            self.broken("core", reason);
        }
        Some(())
    }
}
