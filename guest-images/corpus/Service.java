import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.LongAdder;
import java.util.function.Supplier;
import java.util.regex.Pattern;

/** An HTTP service whose handlers have known costs. Prints `phase NAME SECONDS`, by the threads' CPU clocks. */
public final class Service {
    private static final ThreadMXBean CLOCK = ManagementFactory.getThreadMXBean();
    private static final Pattern WANTED = Pattern.compile("colour [135] size (\\d+)");
    private static final Map<String, LongAdder> SPENT = new TreeMap<>();
    private static final List<Item> CATALOGUE = new ArrayList<>();

    private Service() {}

    private static final class Item {
        final String name;
        final int price;
        final String text;

        Item(int number) {
            name = "item " + number;
            price = number * 37 % 101;
            text = "colour " + number % 7 + " size " + number % 5;
        }
    }

    static String handleCart() {
        long total = 0;
        for (int round = 0; round < 600; round++) {
            for (Item item : CATALOGUE) {
                total += (long) item.price * round % 7;
            }
        }
        return "{\"total\": " + total + "}";
    }

    static String handleSearch() {
        List<Item> found = new ArrayList<>();
        for (Item item : CATALOGUE) {
            if (WANTED.matcher(item.text).find()) {
                found.add(item);
            }
        }
        found.sort(Comparator.<Item>comparingInt(item -> item.price).thenComparing(item -> item.name));
        StringBuilder answer = new StringBuilder();
        for (Item item : found) {
            answer.append(item.name).append('\n');
        }
        return answer.toString();
    }

    static String handleReport() {
        StringBuilder page = new StringBuilder("<h1>report</h1>");
        for (Item item : CATALOGUE.subList(0, 300)) {
            String price = String.format(Locale.ROOT, "%.2f", item.price / 4.0);
            page.append("<p>").append(item.name).append(": ").append(price).append("</p>");
        }
        return page.toString();
    }

    private static void serve(HttpServer server, String name, Supplier<String> handler) {
        LongAdder spent = new LongAdder();
        SPENT.put(name, spent);
        server.createContext("/" + name, exchange -> answer(exchange, handler, spent));
    }

    private static void answer(HttpExchange exchange, Supplier<String> handler, LongAdder spent) {
        long start = CLOCK.getCurrentThreadCpuTime();
        String text = handler.get();
        spent.add(CLOCK.getCurrentThreadCpuTime() - start);
        byte[] body = text.getBytes(StandardCharsets.UTF_8);
        try (OutputStream stream = exchange.getResponseBody()) {
            exchange.sendResponseHeaders(200, body.length);
            stream.write(body);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static void finish() {
        SPENT.forEach((name, spent) -> System.out.printf(Locale.ROOT, "phase %s %.6f%n", name, spent.sum() / 1e9));
        System.out.flush();
    }

    public static void main(String[] arguments) throws IOException {
        for (int number = 0; number < 1000; number++) {
            CATALOGUE.add(new Item(number));
        }
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 8000), 0);
        serve(server, "cart", Service::handleCart);
        serve(server, "search", Service::handleSearch);
        serve(server, "report", Service::handleReport);
        server.setExecutor(Executors.newFixedThreadPool(2));
        Runtime.getRuntime().addShutdownHook(new Thread(Service::finish));
        server.start();
    }
}
