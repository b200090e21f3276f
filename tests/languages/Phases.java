import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.LongConsumer;
import java.util.stream.Stream;

/** Functions that measure themselves: Phases SECONDS. Prints `phase NAME SECONDS`, by the thread's CPU clock. */
public final class Phases {
    private static final ThreadMXBean CLOCK = ManagementFactory.getThreadMXBean();
    private static final Map<String, Long> SPENT = new ConcurrentHashMap<>();

    static long now() {
        return CLOCK.getCurrentThreadCpuTime();
    }

    static long work(long limit) {
        long count = 0;
        while (now() < limit) {
            for (int i = 0; i < 3000; i++) {
                count += i * i % 7;
            }
        }
        return count;
    }

    static void plain(long limit) {
        work(limit);
    }

    static void recursive(long limit) {
        deeper(limit, 40);
    }

    static long deeper(long limit, int depth) {
        return depth > 0 ? deeper(limit, depth - 1) + 1 : work(limit);
    }

    static void calledBack(long limit) {
        Stream.of(limit).forEach(end -> work(end));
    }

    static void fail(long count) {
        throw new IllegalArgumentException("count " + count);
    }

    static void thrown(long limit) {
        long count = 0;
        while (now() < limit) {
            try {
                fail(count);
            } catch (IllegalArgumentException error) {
                count += error.getMessage().length();
            }
        }
    }

    static synchronized void locked(long limit) {
        work(limit);
    }

    static void pooled(long limit) {
        work(limit);
    }

    static void measure(String name, LongConsumer phase, double seconds) {
        long start = now();
        phase.accept(start + (long) (seconds * 1e9));
        SPENT.merge(name, now() - start, Long::sum);
    }

    static void pool(int rounds) {
        for (int round = 0; round < rounds; round++) {
            measure("pooled", Phases::pooled, 0.01);
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        int rounds = (int) (Double.parseDouble(arguments[0]) * 20);
        System.out.println("begun");
        Thread[] threads = new Thread[2];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(() -> pool(rounds), "pool number " + i);
            threads[i].start();
        }
        for (int round = 0; round < rounds; round++) {
            measure("plain", Phases::plain, 0.012);
            measure("recursive", Phases::recursive, 0.008);
            measure("locked", Phases::locked, 0.006);
            measure("thrown", Phases::thrown, 0.005);
            measure("calledBack", Phases::calledBack, 0.004);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        SPENT.forEach((name, nanoseconds) -> System.out.println("phase Phases." + name + " " + nanoseconds / 1e9));
    }
}
