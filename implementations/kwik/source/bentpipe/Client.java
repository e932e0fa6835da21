package bentpipe;

import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.CompletionService;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorCompletionService;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import tech.kwik.agent15.TlsConstants.CipherSuite;
import tech.kwik.core.QuicClientConnection;
import tech.kwik.core.QuicClientConnection.StreamEarlyData;
import tech.kwik.core.QuicConnection.QuicVersion;
import tech.kwik.core.QuicSessionTicket;
import tech.kwik.core.QuicStream;
import tech.kwik.core.impl.Internals;
import tech.kwik.flupke.Http3ClientConnection;
import tech.kwik.flupke.impl.Http3ClientConnectionImpl;

/**
 * The client of kwik: downloads every URL of REQUESTS in the way that the test case requires.
 *
 * <p>Exit code 0 when every file has arrived completely, 1 otherwise.
 */
public final class Client {

    private static final Path DOWNLOADS = Path.of("/downloads");
    private static final Duration HANDSHAKE = Duration.ofSeconds(30);
    private static final Duration TICKET = Duration.ofSeconds(10);
    /** The number of unidirectional streams that a client must allow the server in HTTP/3 (RFC 9114 §6.2). */
    private static final int HTTP3_STREAMS = 3;
    private static final long H3_NO_ERROR = 0x100;
    /** kwik's streams block the reading thread, and a container may not have 2000 threads. */
    private static final int THREADS = 256;

    private final Settings settings;
    private final KeyLog keyLog;
    private final ExecutorService threads = Executors.newFixedThreadPool(THREADS);

    private Client(Settings settings) {
        this.settings = settings;
        this.keyLog = new KeyLog(settings.keyLog());
    }

    public static void main(String[] arguments) {
        try {
            new Client(Settings.fromEnvironment()).run();
        } catch (IOException | GeneralSecurityException | ExecutionException | InterruptedException error) {
            System.err.println("not all files have arrived: " + error);
            System.exit(1);
        }
        // kwik's threads and the waiting threads of the pool would keep the program running.
        System.exit(0);
    }

    private void run() throws IOException, GeneralSecurityException, ExecutionException, InterruptedException {
        List<URI> urls = settings.requests();
        switch (settings.testCase()) {
            case "multiconnect" -> {
                for (URI url : urls) {
                    fetch(List.of(url), null);
                }
            }
            case "resumption", "zerortt" -> {
                QuicSessionTicket ticket = fetch(urls.subList(0, 1), null);
                if (ticket == null) {
                    throw new IOException("the server gave no session ticket");
                }
                fetch(urls.subList(1, urls.size()), ticket);
            }
            default -> fetch(urls, null);
        }
    }

    /** Fetches all files at once over one connection. Returns the ticket that the next connection of the case needs. */
    private QuicSessionTicket fetch(List<URI> urls, QuicSessionTicket ticket)
            throws IOException, GeneralSecurityException, ExecutionException, InterruptedException {
        Path secrets = Files.createTempFile("kwik", ".keys");
        QuicClientConnection connection = connection(urls.get(0), ticket, secrets);
        boolean early = ticket != null && settings.testCase().equals("zerortt");
        List<QuicStream> streams;
        try {
            streams = connection.connect(early ? urls.stream().map(Client::earlyRequest).toList() : List.of());
        } finally {
            log(secrets, early ? connection : null);
        }
        if (settings.testCase().equals("keyupdate")) {
            while (!Internals.isConfirmed(connection)) {
                Thread.sleep(1);
            }
            Internals.updateKeys(connection);
        }
        if (settings.alpn().equals(Settings.HTTP3)) {
            fetchHttp3(connection, urls);
            connection.close(H3_NO_ERROR, "");
        } else {
            fetchHttp09(connection, urls, streams);
        }
        QuicSessionTicket next = needsTicket(ticket) ? awaitTicket(connection) : null;
        connection.closeAndWait();
        return next;
    }

    private QuicClientConnection connection(URI url, QuicSessionTicket ticket, Path secrets)
            throws IOException, GeneralSecurityException {
        QuicClientConnection.Builder builder = QuicClientConnection.newBuilder()
                .uri(url)
                .applicationProtocol(settings.alpn())
                .connectTimeout(HANDSHAKE)
                .customTrustManager(Tls.trust())
                .logger(Settings.clientLogger())
                .secrets(secrets);
        if (settings.alpn().equals(Settings.HTTP3)) {
            builder.maxOpenPeerInitiatedBidirectionalStreams(0).maxOpenPeerInitiatedUnidirectionalStreams(HTTP3_STREAMS);
        }
        if (ticket != null) {
            builder.sessionTicket(ticket);
        }
        switch (settings.testCase()) {
            case "chacha20" -> builder.cipherSuite(CipherSuite.TLS_CHACHA20_POLY1305_SHA256);
            case "v2" -> builder.preferredVersion(QuicVersion.V2);
            default -> { }
        }
        return builder.build();
    }

    /** Appends a connection's keys to the key log. kwik would write a new key log for each connection. */
    private void log(Path secrets, QuicClientConnection early) throws IOException {
        List<String> lines = new ArrayList<>(Files.readAllLines(secrets));
        Files.delete(secrets);
        if (early != null && !lines.isEmpty()) {
            String clientRandom = lines.get(0).split(" ")[1];
            keyLog.write("CLIENT_EARLY_TRAFFIC_SECRET", HexFormat.of().parseHex(clientRandom), Internals.earlySecret(early));
        }
        keyLog.append(lines);
    }

    private boolean needsTicket(QuicSessionTicket had) {
        return had == null && (settings.testCase().equals("resumption") || settings.testCase().equals("zerortt"));
    }

    private static QuicSessionTicket awaitTicket(QuicClientConnection connection) throws InterruptedException {
        for (long waited = 0; connection.getNewSessionTickets().isEmpty(); waited++) {
            if (waited == TICKET.toMillis()) {
                return null;
            }
            Thread.sleep(1);
        }
        return connection.getNewSessionTickets().get(0);
    }

    /** Fetches files over HTTP/0.9. `streams`: the streams of requests in 0-RTT; null for a request beyond the server's limit. */
    private void fetchHttp09(QuicClientConnection connection, List<URI> urls, List<QuicStream> streams)
            throws ExecutionException, InterruptedException {
        CompletionService<Void> transfers = new ExecutorCompletionService<>(threads);
        // This runs in another thread: when the connection fails, requests beyond the server's stream limit would wait forever.
        transfers.submit(() -> {
            for (int i = 0; i < urls.size(); i++) {
                URI url = urls.get(i);
                QuicStream early = i < streams.size() ? streams.get(i) : null;
                QuicStream stream = early != null ? early : request(connection, url);
                transfers.submit(() -> save(stream, url));
            }
            return null;
        });
        await(transfers, urls.size() + 1);
    }

    private void fetchHttp3(QuicClientConnection connection, List<URI> urls)
            throws IOException, ExecutionException, InterruptedException {
        Http3ClientConnection http = new Http3ClientConnectionImpl(connection, threads);
        http.connect();
        CompletionService<Void> transfers = new ExecutorCompletionService<>(threads);
        for (URI url : urls) {
            transfers.submit(() -> {
                HttpResponse<Path> response = http.send(HttpRequest.newBuilder(url).build(), BodyHandlers.ofFile(target(url)));
                if (response.statusCode() != 200) {
                    throw new IOException(url + ": status " + response.statusCode());
                }
                return null;
            });
        }
        await(transfers, urls.size());
    }

    private static Void save(QuicStream stream, URI url) throws IOException {
        try (OutputStream file = Files.newOutputStream(target(url))) {
            stream.getInputStream().transferTo(file);
        }
        return null;
    }

    /** Waits until this number of transfers has ended. Throws the exception of the first transfer that fails. */
    private static void await(CompletionService<Void> transfers, int count) throws ExecutionException, InterruptedException {
        for (int ended = 0; ended < count; ended++) {
            transfers.take().get();
        }
    }

    private static QuicStream request(QuicClientConnection connection, URI url) throws IOException {
        QuicStream stream = connection.createStream(true);
        try (OutputStream output = stream.getOutputStream()) {
            output.write(bytes(url));
        }
        return stream;
    }

    private static StreamEarlyData earlyRequest(URI url) {
        return new StreamEarlyData(bytes(url), true);
    }

    private static byte[] bytes(URI url) {
        return ("GET " + url.getPath() + "\r\n").getBytes(StandardCharsets.US_ASCII);
    }

    private static Path target(URI url) {
        return DOWNLOADS.resolve(Path.of(url.getPath()).getFileName());
    }
}
