import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.Locale;

/** Phases of known shares of the CPU: java Phases SECONDS. Prints `phase NAME SECONDS`, by the thread's CPU clock. */
public final class Phases {
    private static final ThreadMXBean CLOCK = ManagementFactory.getThreadMXBean();

    private Phases() {}

    static int fib(int n) {
        return n < 2 ? n : fib(n - 1) + fib(n - 2);
    }

    static int sieve(int n) {
        boolean[] composite = new boolean[n + 1];
        int count = 0;
        for (int candidate = 2; candidate <= n; candidate++) {
            if (!composite[candidate]) {
                count++;
                for (int multiple = 2 * candidate; multiple <= n; multiple += candidate) {
                    composite[multiple] = true;
                }
            }
        }
        return count;
    }

    static int text(int n) {
        StringBuilder builder = new StringBuilder();
        for (int i = 0; i < n; i++) {
            builder.append("item ").append(i).append(';');
        }
        return builder.toString().split(";").length;
    }

    static void runFib() {
        check(fib(16) == 987);
    }

    static void runSieve() {
        check(sieve(5000) == 669);
    }

    static void runText() {
        check(text(100) == 100);
    }

    private static void check(boolean right) {
        if (!right) {
            throw new IllegalStateException("a wrong result");
        }
    }

    private static void run(int phase) {
        switch (phase) {
            case 0: runFib(); break;
            case 1: runSieve(); break;
            default: runText();
        }
    }

    public static void main(String[] arguments) {
        double seconds = Double.parseDouble(arguments[0]);
        String[] names = {"fib", "sieve", "text"};
        double[] weights = {0.5, 0.3, 0.2};
        long[] used = new long[names.length];
        for (double done = 0.25; done < seconds + 0.125; done += 0.25) {
            for (int phase = 0; phase < names.length; phase++) {
                long start = CLOCK.getCurrentThreadCpuTime();
                long now = start;
                long end = start + (long) (done * weights[phase] * 1e9) - used[phase];
                while (now < end) {
                    run(phase);
                    now = CLOCK.getCurrentThreadCpuTime();
                }
                used[phase] += now - start;
            }
        }
        for (int phase = 0; phase < names.length; phase++) {
            System.out.printf(Locale.ROOT, "phase %s %.6f%n", names[phase], used[phase] / 1e9);
        }
        System.out.printf(Locale.ROOT, "total %.6f%n", ProcessHandle.current().info().totalCpuDuration().get().toNanos() / 1e9);
    }
}
