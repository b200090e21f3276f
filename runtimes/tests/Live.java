import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;

/**
 * Stacks of every kind, for a test that reads them from outside. Prints a line for each thread that stays as it is:
 * its name, then CLASS.METHOD|FILE|LINE of each frame, innermost first, separated by tabs. Other threads are busy.
 */
public class Live {
    interface Action { void run(); }

    static final class First implements Action { public void run() { sum += 1; } }
    static final class Second implements Action { public void run() { sum += 2; } }
    static final class Third implements Action { public void run() { sum += 3; } }
    static final class Stop implements Action { public void run() { stop(); } }

    static volatile long sum;
    static final Action[] CHEAP = {new First(), new Second(), new Third()};

    static void stop() {
        report(); while (true) LockSupport.park();
    }

    static synchronized void report() {
        StringBuilder line = new StringBuilder(Thread.currentThread().getName());
        StackWalker.getInstance(StackWalker.Option.SHOW_HIDDEN_FRAMES).forEach(frame -> {
            String file = frame.getFileName();
            int number = frame.getLineNumber();
            line.append('\t').append(frame.getClassName()).append('.').append(frame.getMethodName());
            line.append('|').append(file == null ? "-" : file).append('|').append(number > 0 ? number : 0);
        });
        byte[] bytes = line.append('\n').toString().getBytes(StandardCharsets.UTF_8);
        System.out.write(bytes, 0, bytes.length);
        System.out.flush();
    }

    // Inlined into each other by the compilers, with lines of their own.
    static int leaf(Action action, int value) {
        action.run();
        return value + 1;
    }

    static int middle(Action action, int value) {
        int first = value * 3;
        return leaf(action, first) + 1;
    }

    static int outer(Action action, int value) {
        return middle(action,
            value + 7);
    }

    static int recursive(Action action, int depth) {
        return depth == 0 ? outer(action, 1) : recursive(action, depth - 1) + 1;
    }

    static int many(Action action, int a, long b, double c, Object d, int e, int f, int g, int h, int i, int j) {
        return outer(action, a) + (int) (b + c) + e + f + g + h + i + j + d.hashCode();
    }

    static void sorted(Action action) {
        Integer[] numbers = {2, 1};
        Arrays.sort(numbers, (a, b) -> recursive(action, 3) > 0 ? Integer.compare(a, b) : 0);
    }

    static void mapped(Action action) {
        Map<String, Integer> map = new HashMap<>();
        map.computeIfAbsent("key", key -> outer(action, key.length()));
    }

    public static void reflected(Action action) {
        outer(action, 4);
    }

    static void reflective(Action action) throws Exception {
        Method method = Live.class.getMethod("reflected", Action.class);
        method.invoke(null, action);
    }

    static class Räume {
        synchronized int 名前(Action action) {
            try {
                return many(action, 1, 2, 3, this, 4, 5, 6, 7, 8, 9);
            } finally {
                sum += 1;
            }
        }
    }

    interface Body { void run(Action action) throws Exception; }

    /** The virtual machine runs the initializer. */
    static class Initialized {
        static Action action;
        static class Inner {
            static int value = outer(Initialized.action, 2);
        }
    }

    static void initialized(Action action) {
        // Only once.
        if (action instanceof Stop) {
            Initialized.action = action;
            sum += Initialized.Inner.value;
        }
    }

    static void thread(String name, Body body, int warm) {
        Thread thread = new Thread(() -> {
            try {
                for (int i = 0; i < warm; i++) {
                    body.run(CHEAP[i % 3]);
                }
                body.run(new Stop());
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }, name);
        thread.setDaemon(true);
        thread.start();
    }

    static int mix(int value) {
        int result = value;
        for (int i = 0; i < 50; i++) {
            result = step(result, i);
        }
        return result;
    }

    static int step(int value, int i) {
        return value * 31 + (i ^ value >>> 3);
    }

    static long lookup(Map<Integer, Integer> map, int key) {
        Integer found = map.get(key & 1023);
        return found == null ? 0 : found;
    }

    static long spin(Map<Integer, Integer> map, int round) {
        long total = 0;
        for (int i = 0; i < 1000; i++) {
            total += mix(i + round) + lookup(map, i) + recursiveSum(8) + copied(i);
        }
        return total;
    }

    static int recursiveSum(int depth) {
        return depth == 0 ? 1 : recursiveSum(depth - 1) + depth;
    }

    static byte[] source = new byte[3000];

    static int copied(int i) {
        byte[] copy = Arrays.copyOf(source, 100 + (i & 511));
        return copy.length + String.valueOf(i).length();
    }

    static void busy() {
        Map<Integer, Integer> map = new HashMap<>();
        for (int i = 0; i < 1024; i++) {
            map.put(i, i);
        }
        for (int round = 0; ; round++) {
            sum += spin(map, round);
        }
    }

    public static void main(String[] args) throws Exception {
        int warm = Integer.parseInt(args[0]);
        thread("live-outer", action -> outer(action, 1), warm);
        thread("live-deep", action -> recursive(action, 100), warm / 10);
        thread("live-many", action -> new Räume().名前(action), warm);
        thread("live-sorted", Live::sorted, warm);
        thread("live-mapped", Live::mapped, warm);
        thread("live-reflected", Live::reflective, warm);
        thread("live-init", Live::initialized, 1);
        thread("live-cold", action -> recursive(action, 5), 0);
        for (int i = 0; i < Integer.parseInt(args[1]); i++) {
            thread("live-idle-" + i, action -> outer(action, 1), 0);
        }
        Thread thread = new Thread(Live::busy, "busy");
        thread.setDaemon(true);
        thread.start();
        thread.join();
    }
}
