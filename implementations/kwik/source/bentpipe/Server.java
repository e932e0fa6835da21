package bentpipe;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.DatagramSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import tech.kwik.agent15.engine.TlsServerEngineFactory;
import tech.kwik.core.QuicConnection;
import tech.kwik.core.QuicConnection.QuicVersion;
import tech.kwik.core.QuicStream;
import tech.kwik.core.log.Logger;
import tech.kwik.core.log.SysOutLogger;
import tech.kwik.core.server.ApplicationProtocolConnection;
import tech.kwik.core.server.ApplicationProtocolConnectionFactory;
import tech.kwik.core.server.ServerConnectionConfig;
import tech.kwik.core.server.ServerConnectionConfig.RetryRequired;
import tech.kwik.core.server.ServerConnector;
import tech.kwik.core.server.impl.ServerConnectorImpl;
import tech.kwik.flupke.server.Http3ApplicationProtocolFactory;
import tech.kwik.flupke.server.HttpServerRequest;
import tech.kwik.flupke.server.HttpServerResponse;

/** The server of kwik: serves /www over HTTP/0.9 and HTTP/3; the client chooses. */
public final class Server {

    private static final Path ROOT = Path.of("/www");
    private static final int PORT = 443;
    private static final int STREAMS = 100;
    /** Application error code for a missing file, because HTTP/0.9 has no status. */
    private static final long NO_FILE = 1;

    private Server() {}

    public static void main(String[] arguments) throws IOException, GeneralSecurityException, ReflectiveOperationException {
        Settings settings = Settings.fromEnvironment();
        ServerConnector connector = connector(settings);
        connector.registerApplicationProtocol(Settings.HTTP09, new Http09());
        connector.registerApplicationProtocol(Settings.HTTP3, new Http3ApplicationProtocolFactory(Server::answer));
        connector.start();
    }

    /** Makes the connector. The sizes are kwik's defaults. */
    private static ServerConnector connector(Settings settings)
            throws IOException, GeneralSecurityException, ReflectiveOperationException {
        ServerConnectionConfig configuration = ServerConnectionConfig.builder()
                .maxConnectionBufferSize(10_000_000)
                .maxUnidirectionalStreamBufferSize(1_000_000)
                .maxBidirectionalStreamBufferSize(1_000_000)
                .maxOpenPeerInitiatedUnidirectionalStreams(10)
                .maxOpenPeerInitiatedBidirectionalStreams(STREAMS)
                .retryRequired(settings.testCase().equals("retry") ? RetryRequired.Always : RetryRequired.Never)
                .build();
        // The builder can't set a TLS engine that logs its keys, so the private constructor is called.
        var constructor = ServerConnectorImpl.class.getDeclaredConstructor(
                DatagramSocket.class, TlsServerEngineFactory.class, List.class, ServerConnectionConfig.class, Logger.class);
        constructor.setAccessible(true);
        return constructor.newInstance(
                new DatagramSocket(PORT),
                new LoggedEngineFactory(Tls.identity(), new KeyLog(settings.keyLog())),
                List.of(QuicVersion.V1, QuicVersion.V2),
                configuration,
                new SysOutLogger());
    }

    private static final class Http09 implements ApplicationProtocolConnectionFactory {

        private final ExecutorService threads = Executors.newCachedThreadPool();

        @Override
        public int maxConcurrentPeerInitiatedBidirectionalStreams() {
            return STREAMS;
        }

        @Override
        public int maxConcurrentPeerInitiatedUnidirectionalStreams() {
            return 0;
        }

        @Override
        public ApplicationProtocolConnection createConnection(String protocol, QuicConnection connection) {
            return new ApplicationProtocolConnection() {
                @Override
                public void acceptPeerInitiatedStream(QuicStream stream) {
                    threads.execute(() -> answer(stream));
                }
            };
        }

        private static void answer(QuicStream stream) {
            try (InputStream input = stream.getInputStream(); OutputStream output = stream.getOutputStream()) {
                String request = new String(input.readAllBytes(), StandardCharsets.US_ASCII).strip();
                Path file = file(request.startsWith("GET ") ? request.substring(4) : "");
                if (Files.isRegularFile(file)) {
                    Files.copy(file, output);
                } else {
                    stream.resetStream(NO_FILE);
                }
            } catch (IOException error) {
                System.err.println("a stream ended early: " + error.getMessage());
            }
        }
    }

    private static void answer(HttpServerRequest request, HttpServerResponse response) throws IOException {
        Path file = file(request.path());
        if (request.method().equals("GET") && Files.isRegularFile(file)) {
            response.setStatus(200);
            Files.copy(file, response.getOutputStream());
        } else {
            response.setStatus(404);
        }
    }

    /** The file of a request. Only the last part of the path counts, because /www has no folders. */
    private static Path file(String path) {
        return ROOT.resolve(path.substring(path.lastIndexOf('/') + 1));
    }
}
