// The Java client of the matrix, on kafka-clients: assign, explicit offsets, no auto-commit, no group.
// Command line: see ../common.py.
package ringlog.clients;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class JavaClient {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration CONSUME_DEADLINE = Duration.ofSeconds(15);

    private record Specification(byte[] key, byte[] value, List<Header> headers, Long timestamp) {}

    private static final class Mismatch extends RuntimeException {
        Mismatch(String text) {
            super(text);
        }
    }

    private static byte[] bytes(JsonNode node) {
        return node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    private static List<Specification> load(String path) throws IOException {
        List<Specification> all = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(path))) {
            JsonNode item = JSON.readTree(line);
            List<Header> headers = new ArrayList<>();
            for (JsonNode pair : item.get("headers")) {
                headers.add(new RecordHeader(pair.get(0).asText(), bytes(pair.get(1))));
            }
            JsonNode timestamp = item.get("timestamp");
            Long milliseconds = timestamp.isNull() ? null : timestamp.asLong();
            all.add(new Specification(bytes(item.get("key")), bytes(item.get("value")), headers, milliseconds));
        }
        return all;
    }

    private static String show(byte[] data) {
        if (data == null) {
            return "null";
        }
        byte[] start = Arrays.copyOf(data, Math.min(24, data.length));
        return data.length + " bytes " + Base64.getEncoder().encodeToString(start) + (data.length > 24 ? "..." : "");
    }

    private static void same(String field, int index, byte[] expected, byte[] got) {
        if (!Arrays.equals(expected, got)) {
            int at = expected == null || got == null ? 0 : Arrays.mismatch(expected, got);
            throw new Mismatch("record " + index + ": " + field + ": expected " + show(expected) + ", read " + show(got)
                + " (first difference at byte " + at + ")");
        }
    }

    private static void compare(int index, Specification expected, ConsumerRecord<byte[], byte[]> got, long offset) {
        if (got.offset() != offset) {
            throw new Mismatch("record " + index + ": offset: expected " + offset + ", read " + got.offset());
        }
        same("key", index, expected.key, got.key());
        same("value", index, expected.value, got.value());
        Header[] headers = got.headers().toArray();
        if (headers.length != expected.headers.size()) {
            throw new Mismatch("record " + index + ": expected " + expected.headers.size() + " headers, read " + headers.length);
        }
        for (int number = 0; number < headers.length; number++) {
            String name = expected.headers.get(number).key();
            if (!name.equals(headers[number].key())) {
                throw new Mismatch("record " + index + ": header name: expected " + name + ", read " + headers[number].key());
            }
            same("header " + name, index, expected.headers.get(number).value(), headers[number].value());
        }
        if (expected.timestamp != null && expected.timestamp != got.timestamp()) {
            throw new Mismatch("record " + index + ": timestamp: expected " + expected.timestamp + ", read " + got.timestamp());
        }
    }

    private static String produce(JsonNode job) throws Exception {
        List<Specification> records = load(job.get("spec").asText());
        boolean idempotent = job.path("idempotent").asBoolean(false);
        String acks = job.path("acks").asText("all");
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", job.get("bootstrap").asText(),
            "compression.type", job.path("codec").asText("none"),
            "acks", acks,
            "enable.idempotence", idempotent,
            "max.in.flight.requests.per.connection", idempotent ? 5 : 1,
            "linger.ms", 20,
            "max.request.size", 1_048_576,
            "delivery.timeout.ms", 30_000,
            "request.timeout.ms", 10_000,
            "max.block.ms", 20_000);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            String topic = job.get("topic").asText();
            int partition = job.path("partition").asInt(0);
            for (Specification record : records) {
                sent.add(producer.send(new ProducerRecord<>(
                    topic, partition, record.timestamp, record.key, record.value, record.headers)));
            }
            producer.flush();
            if (acks.equals("0")) {
                // Nothing says that the bytes have left; a connection closed at once may lose them.
                Thread.sleep(300);
            }
        }
        long first = -1;
        for (int index = 0; index < sent.size(); index++) {
            long offset = sent.get(index).get(1, TimeUnit.SECONDS).offset();
            first = index == 0 ? offset : first;
            if (!acks.equals("0") && offset != first + index) {
                throw new Mismatch("offsets are not one run: record " + index + " at " + offset + " after " + first);
            }
        }
        return records.size() + " records";
    }

    private static String consume(JsonNode job) throws Exception {
        List<Specification> expected = load(job.get("expect").asText());
        String from = job.path("from").asText("beginning");
        long first = from.equals("beginning") ? 0 : Long.parseLong(from);
        TopicPartition partition = new TopicPartition(job.get("topic").asText(), job.path("partition").asInt(0));
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", job.get("bootstrap").asText(),
            "enable.auto.commit", false,
            "auto.offset.reset", "none",
            "check.crcs", true,
            "fetch.max.wait.ms", 50,
            "request.timeout.ms", 10_000,
            "default.api.timeout.ms", 15_000);
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, first);
            int index = 0;
            long deadline = System.nanoTime() + CONSUME_DEADLINE.toNanos();
            while (index < expected.size()) {
                if (System.nanoTime() > deadline) {
                    throw new Mismatch(index + " of " + expected.size() + " records within " + CONSUME_DEADLINE.toSeconds() + " s");
                }
                for (ConsumerRecord<byte[], byte[]> got : consumer.poll(Duration.ofMillis(500))) {
                    if (index >= expected.size()) {
                        throw new Mismatch("one record more than the " + expected.size() + " expected, at offset " + got.offset());
                    }
                    compare(index, expected.get(index), got, first + index);
                    index++;
                }
            }
            long low = consumer.beginningOffsets(List.of(partition)).get(partition);
            long high = consumer.endOffsets(List.of(partition)).get(partition);
            if (low != 0 || high != first + expected.size()) {
                throw new Mismatch("watermarks " + low + ".." + high + ", expected 0.." + (first + expected.size()));
            }
        }
        return expected.size() + " records";
    }

    static String version() throws IOException {
        Properties properties = new Properties();
        try (InputStream resource = KafkaConsumer.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            if (resource != null) {
                properties.load(resource);
            }
        }
        return properties.getProperty("version", "unknown");
    }

    private static boolean run(JsonNode job) throws IOException {
        long begin = System.nanoTime();
        ObjectNode result = JSON.createObjectNode();
        result.put("id", job.path("id").asText(""));
        try {
            String detail = job.get("action").asText().equals("produce") ? produce(job) : consume(job);
            result.put("ok", true).put("detail", detail);
        } catch (Mismatch error) {
            result.put("ok", false).put("detail", error.getMessage());
        } catch (Exception error) {
            result.put("ok", false).put("detail", error.getClass().getName() + ": " + error.getMessage());
        }
        result.put("seconds", (System.nanoTime() - begin) / 1e9);
        result.put("client", "kafka-clients " + version());
        System.out.println(JSON.writeValueAsString(result));
        return result.get("ok").asBoolean();
    }

    public static void main(String[] arguments) throws IOException {
        if (arguments.length == 0) {
            System.err.println("usage: java-client produce|consume|batch OPTIONS (see common.py)");
            System.exit(2);
        }
        ObjectNode options = JSON.createObjectNode();
        options.put("action", arguments[0]);
        for (int index = 1; index + 1 < arguments.length; index += 2) {
            options.put(arguments[index].replaceFirst("^--", ""), arguments[index + 1]);
        }
        List<JsonNode> jobs = new ArrayList<>();
        if (arguments[0].equals("batch")) {
            for (String line : Files.readAllLines(Path.of(options.get("jobs").asText()))) {
                jobs.add(JSON.readTree(line));
            }
        } else {
            jobs.add(options);
        }
        boolean good = true;
        for (JsonNode job : jobs) {
            good = run(job) && good;
        }
        System.exit(good ? 0 : 1);
    }
}
