package session;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Stands between a client and the ports of a server, and cuts connections in the middle of appends: some before the
 * request is whole, some after the server answered and before the client knows.
 */
final class Proxy implements AutoCloseable {
    private static final int PRODUCE_LOG = 1014;
    /** No request is longer. */
    private static final int LONGEST = 100 << 20;

    final AtomicInteger halves = new AtomicInteger();
    final AtomicInteger lostAnswers = new AtomicInteger();
    private final AtomicInteger appends = new AtomicInteger();
    private final Set<AutoCloseable> open = ConcurrentHashMap.newKeySet();
    private volatile boolean isCutting = true;

    /** Listens on {@code host} and forwards to the same port of {@code target}. */
    Proxy(String host, String target, int... ports) throws IOException {
        for (int port : ports) {
            ServerSocket server = new ServerSocket(port, 50, InetAddress.getByName(host));
            open.add(server);
            start(() -> {
                while (true) {
                    Socket client = server.accept();
                    Socket upstream = new Socket(target, port);
                    client.setTcpNoDelay(true);
                    upstream.setTcpNoDelay(true);
                    open.add(client);
                    open.add(upstream);
                    // Whether answers are thrown away from now on.
                    boolean[] isDeaf = new boolean[1];
                    start(() -> requests(client, upstream, isDeaf));
                    start(() -> answers(client, upstream, isDeaf));
                }
            });
        }
    }

    void stopCutting() {
        isCutting = false;
    }

    private interface Pump {
        void run() throws IOException;
    }

    private static void start(Pump pump) {
        Thread thread = new Thread(() -> {
            try {
                pump.run();
            } catch (IOException closed) {
                // The other side went away.
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private void requests(Socket client, Socket upstream, boolean[] isDeaf) throws IOException {
        try (client; upstream) {
            DataInputStream in = new DataInputStream(client.getInputStream());
            DataOutputStream out = new DataOutputStream(upstream.getOutputStream());
            while (true) {
                int length = in.readInt();
                if (length < 2 || length > LONGEST) throw new IOException("no frame");
                byte[] frame = in.readNBytes(length);
                int api = (frame[0] & 0xff) << 8 | frame[1] & 0xff;
                int count = api == PRODUCE_LOG && isCutting ? appends.incrementAndGet() : 0;
                if (count % 7 == 3) {
                    out.writeInt(length);
                    out.write(frame, 0, length / 2);
                    out.flush();
                    halves.incrementAndGet();
                    return;
                }
                if (count % 7 == 5) {
                    synchronized (isDeaf) {
                        isDeaf[0] = true;
                    }
                }
                out.writeInt(length);
                out.write(frame);
                out.flush();
            }
        }
    }

    private void answers(Socket client, Socket upstream, boolean[] isDeaf) throws IOException {
        try (client; upstream) {
            InputStream in = upstream.getInputStream();
            byte[] bytes = new byte[65536];
            int count;
            while ((count = in.read(bytes)) >= 0) {
                synchronized (isDeaf) {
                    if (isDeaf[0]) {
                        // The server has answered the append, or something before it: the client is not told either.
                        lostAnswers.incrementAndGet();
                        return;
                    }
                }
                client.getOutputStream().write(bytes, 0, count);
            }
        }
    }

    @Override
    public void close() throws Exception {
        for (AutoCloseable socket : open) socket.close();
    }
}
