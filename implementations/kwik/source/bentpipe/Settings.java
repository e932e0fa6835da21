package bentpipe;

import java.net.URI;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.stream.Stream;
import tech.kwik.core.log.Logger;
import tech.kwik.core.log.QLog;
import tech.kwik.core.log.SysOutLogger;
import tech.kwik.qlog.QLogFrontEnd;

/**
 * One run of the endpoint, read from its environment.
 *
 * @param testCase wire name of the test case
 * @param requests URLs to fetch
 * @param keyLog   file that TLS secrets are appended to, in the format of NSS
 */
record Settings(String testCase, List<URI> requests, Optional<Path> keyLog) {

    static final String HTTP09 = "hq-interop";
    static final String HTTP3 = "h3";

    static Settings fromEnvironment() {
        // NewReno with an initial window of ten packets of 1200 bytes is compiled into kwik: CCA and IW can't change it.
        System.out.println("applied: cca=newreno iw=10");
        return new Settings(
                variable("TESTCASE").orElseThrow(),
                Stream.of(variable("REQUESTS").orElse("").split(" ")).filter(url -> !url.isEmpty()).map(URI::create).toList(),
                variable("SSLKEYLOGFILE").map(Path::of));
    }

    String alpn() {
        return testCase.equals("http3") ? HTTP3 : HTTP09;
    }

    /** A logger that prints errors to the standard output and writes events to a qlog. */
    static Logger clientLogger() {
        QLog qlog = new QLogFrontEnd("client", UUID.randomUUID().toString());
        return new SysOutLogger() {
            @Override
            public QLog getQLog() {
                return qlog;
            }
        };
    }

    private static Optional<String> variable(String name) {
        return Optional.ofNullable(System.getenv(name)).filter(value -> !value.isEmpty());
    }
}
