package tech.kwik.qlog;

import java.io.BufferedWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import tech.kwik.core.common.EncryptionLevel;
import tech.kwik.core.log.QLog;
import tech.kwik.core.packet.QuicPacket;
import tech.kwik.core.packet.RetryPacket;
import tech.kwik.core.packet.VersionNegotiationPacket;

/**
 * The qlog of one connection as JSON-SEQ records in QLOGDIR. Each event is written at once. kwik's servers look for a class of
 * this name in a library that is not in the registry; clients get it from their logger. Without QLOGDIR nothing is written.
 */
public final class QLogFrontEnd implements QLog {

    private static final Map<EncryptionLevel, String> TYPES = Map.of(
            EncryptionLevel.Initial, "initial",
            EncryptionLevel.ZeroRTT, "0RTT",
            EncryptionLevel.Handshake, "handshake",
            EncryptionLevel.App, "1RTT");

    private final Instant start = Instant.now();
    private final BufferedWriter file;

    /** The qlog of a server's connection. The parameter is the first destination connection ID of the client. */
    public QLogFrontEnd(byte[] originalDestination) {
        this("server", HexFormat.of().formatHex(originalDestination));
    }

    public QLogFrontEnd(String vantagePoint, String name) {
        String folder = System.getenv("QLOGDIR");
        if (folder == null || folder.isEmpty()) {
            file = new BufferedWriter(BufferedWriter.nullWriter());
            return;
        }
        try {
            file = Files.newBufferedWriter(Path.of(folder, name + ".sqlog"));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        write("{\"qlog_format\":\"JSON-SEQ\",\"qlog_version\":\"0.3\",\"trace\":{\"vantage_point\":{\"type\":\"%s\"},".formatted(vantagePoint)
                + "\"common_fields\":{\"time_format\":\"relative\",\"reference_time\":%d}}}".formatted(start.toEpochMilli()));
        Runtime.getRuntime().addShutdownHook(new Thread(this::emitConnectionTerminatedEvent));
    }

    @Override
    public void emitConnectionCreatedEvent(Instant created) {
        event(created, "connectivity:connection_started", "");
    }

    @Override
    public void emitPacketSentEvent(QuicPacket packet, Instant sent) {
        event(sent, "transport:packet_sent", packet(packet));
    }

    @Override
    public void emitPacketSentEvent(List<QuicPacket> packets, Instant sent) {
        packets.forEach(packet -> emitPacketSentEvent(packet, sent));
    }

    @Override
    public void emitPacketReceivedEvent(QuicPacket packet, Instant received) {
        event(received, "transport:packet_received", packet(packet));
    }

    @Override
    public void emitPacketLostEvent(QuicPacket packet, Instant lost) {
        event(lost, "recovery:packet_lost", packet(packet));
    }

    @Override
    public void emitCongestionControlMetrics(long congestionWindow, long bytesInFlight) {
        event(Instant.now(), "recovery:metrics_updated", window(congestionWindow, bytesInFlight));
    }

    @Override
    public void emitRttMetrics(int smoothedRtt, int rttVar, int latestRtt) {
        event(Instant.now(), "recovery:metrics_updated", roundTrips(smoothedRtt, rttVar, latestRtt));
    }

    @Override
    public void emitRecoveryMetrics(long congestionWindow, long bytesInFlight, int smoothedRtt, int rttVar, int latestRtt) {
        event(Instant.now(), "recovery:metrics_updated",
                window(congestionWindow, bytesInFlight) + "," + roundTrips(smoothedRtt, rttVar, latestRtt));
    }

    @Override
    public void emitConnectionClosedEvent(Instant time) {
        event(time, "connectivity:connection_closed", "");
    }

    @Override
    public void emitConnectionClosedEvent(Instant time, long errorCode, String errorReason) {
        event(time, "connectivity:connection_closed", "\"connection_code\":" + errorCode);
    }

    @Override
    public synchronized void emitConnectionTerminatedEvent() {
        try {
            file.flush();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static String packet(QuicPacket packet) {
        return "\"header\":{" + header(packet) + "},\"raw\":{\"length\":" + packet.getSize() + "}";
    }

    private static String header(QuicPacket packet) {
        if (packet instanceof RetryPacket) {
            return "\"packet_type\":\"retry\"";
        }
        if (packet instanceof VersionNegotiationPacket) {
            return "\"packet_type\":\"version_negotiation\"";
        }
        return "\"packet_type\":\"" + TYPES.get(packet.getEncryptionLevel()) + "\",\"packet_number\":" + packet.getPacketNumber();
    }

    private static String window(long congestionWindow, long bytesInFlight) {
        return "\"congestion_window\":" + congestionWindow + ",\"bytes_in_flight\":" + bytesInFlight;
    }

    private static String roundTrips(int smoothedRtt, int rttVar, int latestRtt) {
        return "\"smoothed_rtt\":" + smoothedRtt + ",\"rtt_variance\":" + rttVar + ",\"latest_rtt\":" + latestRtt;
    }

    /** Write an event. Times are in milliseconds. */
    private void event(Instant time, String name, String data) {
        double milliseconds = Duration.between(start, time).toNanos() / 1e6;
        write("{\"time\":" + milliseconds + ",\"name\":\"" + name + "\",\"data\":{" + data + "}}");
    }

    private synchronized void write(String record) {
        try {
            file.write("\u001e" + record + "\n");
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
