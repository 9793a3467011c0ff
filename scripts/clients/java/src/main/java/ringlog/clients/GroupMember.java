// kafka-clients as a member of a group. Command line: see ../member.py.
package ringlog.clients;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

public final class GroupMember implements ConsumerRebalanceListener {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final KafkaConsumer<byte[], String> consumer;
    private final Map<TopicPartition, OffsetAndMetadata> pending = new HashMap<>();

    private GroupMember(Properties settings) {
        consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new StringDeserializer());
    }

    private static ObjectNode event(String name) {
        return JSON.createObjectNode().put("event", name);
    }

    private static synchronized void emit(ObjectNode event) {
        System.out.println(event);
        System.out.flush();
    }

    private static void partitions(String name, Collection<TopicPartition> partitions) {
        ObjectNode event = event(name);
        partitions.forEach(partition -> event.withArray("partitions").add(partition.partition()));
        event.withArray("partitions");
        emit(event);
    }

    private static void trouble(String what, Exception error) {
        emit(event("trouble").put("detail", what + ": " + error));
    }

    private void commit(Collection<TopicPartition> only) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>(pending);
        offsets.keySet().retainAll(only);
        if (offsets.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync(offsets, Duration.ofSeconds(10));
            pending.keySet().removeAll(offsets.keySet());
        } catch (FencedInstanceIdException error) {
            throw error;
        } catch (KafkaException error) {
            trouble("commit", error);
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
        partitions("assigned", assigned);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
        commit(revoked);
        onPartitionsLost(revoked);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> lost) {
        pending.keySet().removeAll(lost);
        partitions("revoked", lost);
    }

    private void run(String topic, AtomicBoolean stopped) {
        consumer.subscribe(List.of(topic), this);
        while (!stopped.get()) {
            for (ConsumerRecord<byte[], String> record : consumer.poll(Duration.ofMillis(100))) {
                emit(event("read").put("partition", record.partition()).put("offset", record.offset()).put("value", record.value()));
                pending.put(new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
            commit(List.copyOf(pending.keySet()));
        }
        consumer.close();
    }

    private static Properties settings(Map<String, String> options) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", options.get("bootstrap"));
        settings.put("group.id", options.get("group"));
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("fetch.max.wait.ms", "100");
        settings.put("max.poll.records", "50");
        if (options.containsKey("instance")) {
            settings.put("group.instance.id", options.get("instance"));
        }
        String protocol = options.get("protocol");
        if (protocol.equals("consumer")) {
            settings.put("group.protocol", "consumer");
            return settings;
        }
        int session = Integer.parseInt(options.get("session-ms"));
        settings.put("session.timeout.ms", String.valueOf(session));
        settings.put("heartbeat.interval.ms", String.valueOf(session / 6));
        settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer."
            + (protocol.equals("range") ? "RangeAssignor" : "CooperativeStickyAssignor"));
        return settings;
    }

    public static void main(String[] arguments) throws IOException {
        Map<String, String> options = new HashMap<>();
        for (int at = 0; at + 1 < arguments.length; at += 2) {
            options.put(arguments[at].substring(2), arguments[at + 1]);
        }
        emit(event("client").put("name", "kafka-clients " + JavaClient.version()));
        AtomicBoolean stopped = new AtomicBoolean();
        Thread input = new Thread(() -> {
            try {
                System.in.transferTo(java.io.OutputStream.nullOutputStream());
            } catch (IOException error) {
                trouble("standard input", error);
            }
            stopped.set(true);
        });
        input.setDaemon(true);
        input.start();
        try {
            new GroupMember(settings(options)).run(options.get("topic"), stopped);
        } catch (KafkaException error) {
            trouble("end", error);
            System.exit(1);
        }
    }
}
