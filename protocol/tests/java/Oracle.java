import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.ParameterizedType;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collection;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.ArrayList;
import java.util.Map;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.Random;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.message.ConsumerProtocolAssignment;
import org.apache.kafka.common.message.ConsumerProtocolSubscription;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;
import org.apache.kafka.common.record.internal.BaseRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.Deserializer;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordHelpers;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.OffsetAndMetadata;

/**
 * Answers what Apache Kafka's own classes make of bytes: one line of answer for each line of the file it is given. The Rust test
 * `java_oracle` asks; `scripts/java-oracle.sh` runs it with Kafka's jars. It judges nothing.
 *
 * <pre>
 * versions MESSAGE                  lowest and highest version; of a request those that Kafka serves
 * headers KEY VERSION               the API's name and the versions of its request's and response's headers
 * error CODE                        the error's name, and `Retriable` or `Final`
 * default MESSAGE VERSION           a message of which nothing is set
 * make MESSAGE VERSION SEED         a random message
 * rewrite MESSAGE VERSION BYTES TO  read at VERSION, written at TO
 * strip MESSAGE VERSION BYTES       read and written at VERSION, without the tagged fields that nobody knows
 * subscription BYTES                read as ConsumerProtocol does, version in front; written at the highest version
 * assignment BYTES                  the same
 * topics BYTES                      the topics of a subscription as the broker reads them, written at version 0
 * record KEY VALUE                  read as the group coordinator does; both written again
 * offset N                          the record of a committed offset: 0 that stays, 1 that expires
 * group-version                     the version in which a classic group is written
 * </pre>
 *
 * Bytes are hexadecimal, `-` when there are none, `null` for a tombstone. Answers are bytes, or `unread`, `refused`, `unknown`.
 */
public final class Oracle {
    private static final HexFormat HEX = HexFormat.of();
    private static final Map<String, Class<?>> CLASSES = new HashMap<>();
    private static final GroupCoordinatorRecordSerde SERDE = new GroupCoordinatorRecordSerde();

    public static void main(String[] arguments) throws Exception {
        try (BufferedReader questions = Files.newBufferedReader(Path.of(arguments[0]));
             PrintStream answers = new PrintStream(new BufferedOutputStream(System.out, 1 << 16), false, StandardCharsets.US_ASCII)) {
            for (String line = questions.readLine(); line != null; line = questions.readLine()) {
                answers.print(answer(line.split(" ")) + "\n");
            }
        }
    }

    private static String answer(String[] words) throws Exception {
        return switch (words[0]) {
            case "versions" -> versions(words[1]);
            case "headers" -> headers(ApiKeys.forId(Integer.parseInt(words[1])), Short.parseShort(words[2]));
            case "error" -> error(Errors.forCode(Short.parseShort(words[1])));
            case "default" -> written(message(words[1]), Short.parseShort(words[2]));
            case "make" -> make(words[1], Short.parseShort(words[2]), Long.parseLong(words[3]));
            case "rewrite" -> rewrite(words[1], Short.parseShort(words[2]), bytes(words[3]), Short.parseShort(words[4]), false);
            case "strip" -> rewrite(words[1], Short.parseShort(words[2]), bytes(words[3]), Short.parseShort(words[2]), true);
            case "subscription" -> subscription(bytes(words[1]));
            case "assignment" -> assignment(bytes(words[1]));
            case "topics" -> topics(bytes(words[1]));
            case "record" -> record(bytes(words[1]), bytes(words[2]));
            case "offset" -> offset(words[1].equals("1"));
            case "group-version" -> groupVersion();
            default -> throw new IllegalArgumentException(words[0]);
        };
    }

    private static ByteBuffer bytes(String word) {
        return switch (word) {
            case "-" -> ByteBuffer.allocate(0);
            case "null" -> null;
            default -> ByteBuffer.wrap(HEX.parseHex(word));
        };
    }

    private static String hex(byte[] bytes) {
        return bytes.length == 0 ? "-" : HEX.formatHex(bytes);
    }

    private static Message message(String name) throws Exception {
        Class<?> known = CLASSES.get(name);
        if (known == null) {
            boolean isSent = name.endsWith("Request") || name.endsWith("Response");
            String path = isSent ? "org.apache.kafka.common.message." + name + "Data"
                : name.startsWith("ConsumerProtocol") ? "org.apache.kafka.common.message." + name
                : "org.apache.kafka.coordinator.group.generated." + name;
            known = Class.forName(path);
            CLASSES.put(name, known);
        }
        return (Message) known.getConstructor().newInstance();
    }

    private static String versions(String name) throws Exception {
        Message message = message(name);
        if (name.endsWith("Request")) {
            ApiKeys api = ApiKeys.forId(((ApiMessage) message).apiKey());
            return api.id + " " + api.oldestVersion() + " " + api.latestVersion(false);
        }
        int key = message instanceof ApiMessage api ? api.apiKey() : -1;
        return key + " " + message.lowestSupportedVersion() + " " + message.highestSupportedVersion();
    }

    private static String headers(ApiKeys api, short version) {
        return api.name + " " + api.requestHeaderVersion(version) + " " + api.responseHeaderVersion(version);
    }

    private static String error(Errors error) {
        return error.name() + " " + (error.exception() instanceof RetriableException ? "Retriable" : "Final");
    }

    /** Kafka refuses what a version cannot carry by an exception: of versions, or of null where null is not allowed. */
    private static String written(Message message, short version) {
        ByteBuffer buffer;
        try {
            ObjectSerializationCache cache = new ObjectSerializationCache();
            buffer = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(buffer), cache, version);
        } catch (RuntimeException error) {
            return "refused";
        }
        if (buffer.hasRemaining()) {
            throw new IllegalStateException("the size is wrong: " + message);
        }
        return hex(buffer.array());
    }

    private static String rewrite(String name, short version, ByteBuffer bytes, short to, boolean isStripped) throws Exception {
        Message message = message(name);
        try {
            message.read(new ByteBufferAccessor(bytes), version);
        } catch (RuntimeException error) {
            return "unread";
        }
        if (isStripped) {
            strip(message);
        } else if (bytes.hasRemaining()) {
            return "left " + bytes.remaining();
        }
        return written(message, to);
    }

    private static void strip(Object value) throws Exception {
        if (value instanceof Collection<?> elements) {
            for (Object element : elements) {
                strip(element);
            }
        } else if (value instanceof Message) {
            for (Field field : value.getClass().getDeclaredFields()) {
                if (java.lang.reflect.Modifier.isStatic(field.getModifiers())) {
                    continue;
                }
                field.setAccessible(true);
                if (field.getName().equals("_unknownTaggedFields")) {
                    field.set(value, null);
                } else {
                    strip(field.get(value));
                }
            }
        }
    }

    private static String subscription(ByteBuffer bytes) {
        ConsumerProtocolSubscription subscription;
        try {
            subscription = ConsumerProtocol.deserializeConsumerProtocolSubscription(bytes);
        } catch (RuntimeException error) {
            return "unread";
        }
        return written(subscription, ConsumerProtocolSubscription.HIGHEST_SUPPORTED_VERSION);
    }

    private static String assignment(ByteBuffer bytes) {
        ConsumerProtocolAssignment assignment;
        try {
            assignment = ConsumerProtocol.deserializeConsumerProtocolAssignment(bytes);
        } catch (RuntimeException error) {
            return "unread";
        }
        return written(assignment, ConsumerProtocolAssignment.HIGHEST_SUPPORTED_VERSION);
    }

    /** As ClassicGroup.computeSubscribedTopics. */
    private static String topics(ByteBuffer bytes) {
        ConsumerProtocolSubscription subscription;
        try {
            ConsumerProtocol.deserializeVersion(bytes);
            subscription = ConsumerProtocol.deserializeConsumerProtocolSubscription(bytes, (short) 0);
        } catch (RuntimeException error) {
            return "unread";
        }
        return written(new ConsumerProtocolSubscription().setTopics(subscription.topics()), (short) 0);
    }

    private static String record(ByteBuffer key, ByteBuffer value) {
        CoordinatorRecord record;
        try {
            record = SERDE.deserialize(key, value);
        } catch (Deserializer.UnknownRecordTypeException error) {
            return "unknown";
        } catch (RuntimeException error) {
            return "unread";
        }
        return record(record);
    }

    private static String record(CoordinatorRecord record) {
        return hex(SERDE.serializeKey(record)) + " " + (record.value() == null ? "null" : hex(SERDE.serializeValue(record)));
    }

    private static String offset(boolean isExpiring) {
        OptionalLong expires = isExpiring ? OptionalLong.of(5_000) : OptionalLong.empty();
        OffsetAndMetadata offset =
            new OffsetAndMetadata(42, OptionalInt.of(3), "m", 1_000, expires, new Uuid(0x0909090909090909L, 0x0909090909090909L));
        return record(GroupCoordinatorRecordHelpers.newOffsetCommitRecord("g", "orders", 7, offset));
    }

    private static String groupVersion() throws Exception {
        Field version = GroupCoordinatorRecordHelpers.class.getDeclaredField("GROUP_METADATA_VALUE_VERSION");
        version.setAccessible(true);
        return version.get(null).toString();
    }

    private static String make(String name, short version, long seed) throws Exception {
        Message message = message(name);
        fill(message, schema(message.getClass(), version), new Random(seed));
        String bytes = written(message, version);
        if (bytes.equals("refused")) {
            throw new IllegalStateException(name + " " + version + " seed " + seed + ": not of its own schema: " + message);
        }
        return bytes;
    }

    private static Schema schema(Class<?> message, short version) throws Exception {
        return ((Schema[]) message.getField("SCHEMAS").get(null))[version];
    }

    /** Sets every field that the schema of this version has; of tagged ones two in three. */
    private static void fill(Object message, Schema schema, Random random) throws Exception {
        for (BoundField field : schema.fields()) {
            if (field.def.type instanceof TaggedFields tagged) {
                for (org.apache.kafka.common.protocol.types.Field one : tagged.fields().values()) {
                    if (random.nextInt(3) != 0) {
                        set(message, one, random);
                    }
                }
            } else {
                set(message, field.def, random);
            }
        }
    }

    private static void set(Object message, org.apache.kafka.common.protocol.types.Field field, Random random) throws Exception {
        String wanted = "set" + field.name.replace("_", "");
        for (Method method : message.getClass().getMethods()) {
            if (method.getName().equalsIgnoreCase(wanted) && method.getParameterCount() == 1) {
                Object value = value(field.type, method.getGenericParameterTypes()[0], random);
                try {
                    method.invoke(message, value);
                } catch (InvocationTargetException error) {
                    throw new IllegalStateException(message.getClass() + "." + field.name, error.getCause());
                }
                return;
            }
        }
        throw new IllegalStateException("no setter for " + message.getClass() + "." + field.name);
    }

    private static Object value(Type type, java.lang.reflect.Type java, Random random) throws Exception {
        if (type.isNullable() && random.nextInt(4) == 0) {
            return null;
        }
        if (type instanceof Schema schema) {
            Object struct = ((Class<?>) java).getConstructor().newInstance();
            fill(struct, schema, random);
            return struct;
        }
        if (type.isArray()) {
            return elements(type.arrayElementType().orElseThrow(), java, random);
        }
        return plain(type, (Class<?>) java, random);
    }

    @SuppressWarnings("unchecked")
    private static Collection<Object> elements(Type type, java.lang.reflect.Type java, Random random) throws Exception {
        Collection<Object> elements;
        ParameterizedType generic;
        if (java instanceof ParameterizedType list) {
            elements = new ArrayList<>();
            generic = list;
        } else {
            // A collection of Kafka's own that also finds elements by key.
            elements = (Collection<Object>) ((Class<?>) java).getConstructor().newInstance();
            generic = (ParameterizedType) ((Class<?>) java).getGenericSuperclass();
        }
        for (int count = random.nextInt(4); count > 0; count--) {
            elements.add(value(type, generic.getActualTypeArguments()[0], random));
        }
        return elements;
    }

    private static long number(Random random) {
        long[] edges = {0, -1, 1, 127, 32_767, Integer.MIN_VALUE, Long.MAX_VALUE, Long.MIN_VALUE};
        return random.nextBoolean() ? edges[random.nextInt(edges.length)] : random.nextLong();
    }

    private static Object plain(Type type, Class<?> java, Random random) {
        if (java == boolean.class || java == Boolean.class) {
            return random.nextBoolean();
        } else if (java == byte.class || java == Byte.class) {
            return (byte) number(random);
        } else if (java == short.class || java == Short.class) {
            return (short) number(random);
        } else if (java == int.class || java == Integer.class) {
            return type == Type.UINT16 ? (int) number(random) & 0xffff : (int) number(random);
        } else if (java == long.class || java == Long.class) {
            return type == Type.UNSIGNED_INT32 ? number(random) & 0xffffffffL : number(random);
        } else if (java == double.class || java == Double.class) {
            return (double) (number(random) >> 12);
        } else if (java == Uuid.class) {
            return new Uuid(number(random), number(random));
        } else if (java == String.class) {
            List<String> texts = List.of("", "a", "topic-1", "naïve", "日本語", "with space", "\udbff\udfff\n", "x".repeat(200));
            return texts.get(random.nextInt(texts.size()));
        }
        byte[] bytes = new byte[random.nextInt(300)];
        random.nextBytes(bytes);
        if (java == byte[].class) {
            return bytes;
        } else if (java == ByteBuffer.class) {
            return ByteBuffer.wrap(bytes);
        } else if (java == BaseRecords.class) {
            return MemoryRecords.readableRecords(ByteBuffer.wrap(bytes));
        }
        throw new IllegalStateException("no value for " + type + " as " + java);
    }
}
